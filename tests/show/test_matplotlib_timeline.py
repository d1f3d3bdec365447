"""Is the picture a picture: right size, repeatable, with round ticks, and a clear word when matplotlib is missing?"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import MissingExtra, StorageError
from memfit.runfolder.reader import read_run
from memfit.show.views.run import RunView, build_view
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.units import MIB

pytest.importorskip("matplotlib")
from memfit.show.figures.timeline import binary_ticks, draw_timeline, tick_text


def view_of(folder: Path, **plan) -> RunView:
    return build_view(read_run(write_made_run(folder, MadeRun(**plan))))


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"num_workers": 3, "limit_bytes": 600 * MIB},
        {"seconds": 600.0, "interval_seconds": 0.05},
        {"marks": False},
        {"ending": "lost"},
        {"command": ("python", "$x_{1}$ & <b>")},
    ],
)
def test_every_kind_of_run_becomes_a_png_of_the_asked_size(tmp_path: Path, plan: dict):
    path = draw_timeline(view_of(tmp_path / "run", **plan), tmp_path / "x.png")
    raw = path.read_bytes()
    assert raw.startswith(b"\x89PNG")
    assert (int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")) == (1200, 600)


def test_an_svg_is_well_formed_and_the_same_every_time(tmp_path: Path):
    view = view_of(tmp_path / "run")
    first, second = (draw_timeline(view, tmp_path / f"{n}.svg", kind="svg").read_bytes() for n in range(2))
    assert ElementTree.fromstring(first).tag.endswith("svg")
    assert first == second


def test_a_run_without_a_sample_is_still_a_picture(tmp_path: Path):
    folder = write_made_run(tmp_path / "run")
    (folder / "samples.bin").unlink()
    assert draw_timeline(build_view(read_run(folder)), tmp_path / "x.png").stat().st_size > 5000


@given(top=st.floats(1, 2**44))
def test_ticks_are_powers_of_two_apart_few_and_below_the_top(top: float):
    ticks = binary_ticks(top)
    assert ticks[0] == 0
    assert ticks[-1] <= top
    assert 2 <= len(ticks) <= 7
    step = ticks[1]
    assert step & (step - 1) == 0


def test_tick_labels_have_no_needless_digits():
    assert [tick_text(n) for n in (0, 512, 128 * MIB, 1536 * MIB)] == ["0", "512 B", "128 MiB", "1.5 GiB"]


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    view = view_of(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"memfit\[plot\]"):
        draw_timeline(view, tmp_path / "x.png")


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path):
    with pytest.raises(StorageError, match="cannot be written"):
        draw_timeline(view_of(tmp_path / "run"), tmp_path / "nowhere" / "x.png")
