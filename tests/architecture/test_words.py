"""Words of the project: what a module is stands in the first line of its docstring, in words that others search for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "memfit"
INSTEAD = {
    r"fore(see(n|s|ing)?|sight)": "predict, predicted, prediction",
    r"(un)?told": "what happens: reported, called with, gets, is unknown, cannot be separated from",
    r"nobody('s)?": "what is the case: unknown, not read, not saved, not recorded",
    r"spared": "freed, or block by block",
    r"insides": "scratch memory",
    r"cures|cured": "patches, settings",
    r"(let|lets|letting) go": "release, free, drop, close, detach",
    r"leash": "watchdog",
    r"nursery": "fork server",
}
"""The private dialect that a stranger cannot search for, and what to write in its place."""
KEYS_ON_DISK = {"spared_bytes": "plan.json", "num_told": "the facts of a study"}
"""Names inside of files that earlier versions wrote: they stay as long as those files are to be read."""
FIRST = {
    "Who", "What", "When", "Where", "Why", "Which", "Whose", "Whom", "How", "Does", "Do", "Is", "Are", "Can", "May",
    "Will", "Would",
}  # fmt: skip


def dialect_in(text: str) -> list[str]:
    """One message per line and word of the dialect; snake_case names count word by word."""
    for key in KEYS_ON_DISK:
        text = text.replace(f'"{key}"', '""')
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        plain = line.replace("_", " ").replace("-", " ")
        for word, instead in INSTEAD.items():
            if found := re.search(rf"\b({word})\b", plain, re.IGNORECASE):
                problems.append(f"{number}: '{found[0]}': write {instead}")
    return problems


def first_line_problem(text: str) -> str:
    """What is wrong with the first line of a module's docstring; empty when it says what the module is."""
    docstring = ast.get_docstring(ast.parse(text))
    if not docstring:
        return "no docstring: write one line that says what the module is"
    line = docstring.splitlines()[0]
    if "?" in line or line.split()[0] in FIRST:
        return f"{line!r} asks: write what the module is, as 'Reader of run folders.'"
    return "" if line.endswith(".") else f"{line!r} is no whole sentence on one line: shorten it, end with a full stop"


def test_every_module_says_in_its_first_line_what_it_is():
    problems = [f"{path.relative_to(ROOT)}: {first_line_problem(path.read_text())}" for path in SOURCE.rglob("*.py")]
    found = [problem for problem in problems if not problem.endswith(": ")]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["src/memfit", "docs", "examples"])
def test_no_text_or_name_is_in_a_dialect_of_our_own(folder: str):
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".toml"}]
    files += [ROOT / "README.md"] if folder == "docs" else []
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in files
        for problem in dialect_in(path.read_text(encoding="utf-8"))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "text",
    ["the peak is foreseen", "def run_told():", "Nobody knows", "bytes spared", "it lets go of the lock", "unspared"],
)
def test_the_dialect_is_found_in_sentences_and_in_names(text: str):
    assert bool(dialect_in(text)) == (text != "unspared")


def test_a_key_of_an_older_file_is_no_dialect():
    assert not dialect_in('field(name="spared_bytes")')
    assert dialect_in("spared_bytes = 1")


@pytest.mark.parametrize(
    "text",
    ["", '"""How is it read?"""', '"""Reader of runs"""', '"""Reader of runs, which\ngoes on."""', '"""Which one."""'],
)
def test_a_riddle_in_the_first_line_is_refused_with_what_to_write(text: str):
    assert "write" in (problem := first_line_problem(text)) or "shorten" in problem
