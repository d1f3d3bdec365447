"""Does docs/house.md draw the house as it is enforced: every arrow, every room, every floor?"""

from __future__ import annotations

import re
from pathlib import Path

from test_house import EVERYBODY, MAY_IMPORT, SOURCE

PAGE = (Path(__file__).parents[2] / "docs" / "house.md").read_text(encoding="utf-8")
ONE_FILE = {name for name in MAY_IMPORT if not (SOURCE / name).is_dir()}
CORRIDOR = {"api", "commands", "testing"}
"""Rooms whose row says 'all'."""


def drawn_folders() -> dict[str, int]:
    """Every folder in the tree of the page, by its path, with the depth that its line has."""
    tree = PAGE[PAGE.index("src/memfit/\n") :].partition("```")[0]
    trail: list[str] = []
    found: dict[str, int] = {}
    for indent, name in re.findall(r"^( +)([a-z_]+)/ ", tree, re.MULTILINE):
        depth = len(indent) // 2 - 1
        trail[depth:] = [name]
        found["/".join(trail)] = depth
    return found


def drawn_arrows() -> dict[str, str]:
    """Room -> what its row says it may import."""
    table = PAGE[PAGE.index("| room | may import") :].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {room.strip(): allowed for rooms, allowed in rows for room in rooms.split(",")}


def test_every_arrow_of_the_page_is_the_one_that_is_enforced():
    drawn = drawn_arrows()
    assert drawn.keys() == MAY_IMPORT.keys() - ONE_FILE, "the rows of docs/house.md are the rooms of test_house.py"
    for room, allowed in drawn.items():
        if room not in CORRIDOR or not allowed.startswith("all"):
            assert set(allowed.replace(" ", "").split(",")) - {"-"} == MAY_IMPORT[room], f"docs/house.md: {room}"
    head = next(line for line in PAGE.splitlines() if line.startswith("| room | may import"))
    assert set(re.findall(r"`(\w+)`", head)) == EVERYBODY


def test_every_room_and_floor_is_on_the_page_and_nothing_else():
    folders = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*/")
        if any(path.glob("*.py")) and "nni_shim/" not in path.relative_to(SOURCE).as_posix()
    }
    assert set(drawn_folders()) == folders, "docs/house.md draws src/memfit"
