"""Is what README.md and the examples show what `make readme` wrote, and what the commands still print?"""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.readme import all_blocks, blocks_in, digest_of, run_block, shape_of, shown_lines

ROOT = Path(__file__).parents[2]
QUICK = ["explain", "examples/explain", "examples/data", "examples/replay"]
"""What prints the same on every machine, in a second or two."""
SLOW = ["predict", "fit"]


@pytest.mark.parametrize("name", list(all_blocks()))
def test_a_block_is_as_the_script_wrote_it(name: str):
    block = all_blocks()[name]
    digest, text = blocks_in(ROOT / block.file)[name]
    assert digest_of(text) == digest, f"{block.file}: the block {name} was changed by hand: make readme"
    typed = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    wanted = block.commands
    if block.folder != ".":
        wanted = tuple((ROOT / block.folder / "run.sh").read_text(encoding="utf-8").splitlines())
    assert tuple(typed) == tuple(wanted), f"{block.file}: the block {name} shows other commands: make readme"


def test_every_block_of_a_page_is_known_to_the_script():
    pages = [ROOT / "README.md", *ROOT.glob("examples/*/README.md")]
    assert {name for page in pages for name in blocks_in(page)} == set(all_blocks())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_the_commands_still_print_what_is_shown(name: str):
    block = all_blocks()[name]
    shown = blocks_in(ROOT / block.file)[name][1]
    assert shape_of(run_block(block)) == shape_of(shown), "other words are printed now: make readme"


def test_lines_that_are_left_out_leave_dots_and_figures_leave_the_shape():
    assert shown_lines("a 1\nb\nc\na 2\nd\n", ("^a",)) == ["a 1", "...", "a 2"]
    assert shape_of("peak  1.17 GiB │▅█│\n") == shape_of("peak 988.2 MiB │█│\n") != shape_of("mean 1 GiB\n")
