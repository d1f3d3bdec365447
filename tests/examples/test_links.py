"""Does every link between pages of the repository lead to a file, and its anchor to a heading?"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob(".github/**/*.md"),
]  # fmt: skip
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@cache
def anchors_of(path: Path) -> set[str]:
    """The anchors of a page, as GitHub and MkDocs make them from headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.replace("`", "").lower()).strip()) for head in heads}


def broken_links(page: Path, text: str) -> list[str]:
    problems: list[str] = []
    for target in LINK.findall(CODE.sub("", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            problems.append(f"{page.relative_to(ROOT)}: {target}: there is no such file")
        elif anchor and anchor not in anchors_of(file):
            problems.append(f"{page.relative_to(ROOT)}: {target}: there is no such heading")
    return problems


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_somewhere(page: Path):
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_caught():
    page = ROOT / "docs" / "index.md"
    assert "no such file" in broken_links(page, "see [this](nowhere.md)")[0]
    assert "no such heading" in broken_links(page, "see [this](measure.md#nowhere)")[0]
    assert broken_links(page, "see [this](measure.md#the-run-folder), `[that](nowhere.md)`") == []
