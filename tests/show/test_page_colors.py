"""Do colours that stand side by side on the page differ for every kind of colour vision, in light and dark?"""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

LEAST = 10.0
"""Distance in CIELAB: about four times what a person can just tell apart in two patches beside each other."""
VISIONS = {
    "usual": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
"""Linear light as it looks without one kind of cone (Machado, Oliveira and Fernandes, 2009, severity 1)."""
GROUPS = {
    "categories": (
        "c-parameter", "c-buffer", "c-gradient", "c-state", "c-activation", "c-temporary", "c-input", "c-workspace",
    ),
    "rows of a pipeline": ("forward", "backward", "update", "data", "used"),
    "a row of a plan": ("forward", "data", "backward", "update"),
    "ranks of trials": ("shade0", "shade1", "shade2", "soft"),
}  # fmt: skip


def colors(is_dark: bool) -> dict[str, str]:
    """The named colours of a theme."""
    page = files("memfit.show.page")
    style = "".join(page.joinpath(*name.split("/")).read_text() for name in ("assets/page.css", "app/app.css"))
    found: dict[str, str] = {}
    for mark, body in re.findall(r':root(\[data-theme="dark"\])?\s*\{([^}]*)\}', style):
        if bool(mark) == is_dark:
            found.update(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", body))
    return found


def lab(color: str, vision: np.ndarray) -> np.ndarray:
    share = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(vision @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    bent = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * bent[1] - 16, 500 * (bent[0] - bent[1]), 200 * (bent[1] - bent[2])])


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("group", GROUPS)
def test_neighbours_differ_for_every_kind_of_colour_vision(group: str, vision: str, is_dark: bool):
    known = colors(is_dark)
    seen = {name: lab(known[name], VISIONS[vision]) for name in GROUPS[group]}
    near = {(a, b): round(float(np.linalg.norm(seen[a] - seen[b])), 1) for a, b in combinations(seen, 2)}
    assert {pair: far for pair, far in near.items() if far < LEAST} == {}
