"""Hooks of the documentation site: pages that live outside of docs/ become pages, and links between them are rewritten.

On disk every link is relative to its own file, so that it works in a repository browser. Here it is resolved to the
file it names, and written relative to where that file stands in the site. A file of the repository that is no page (a
source file) becomes plain text; a file that does not exist is left as it is, and MkDocs, which is strict, ends the
build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
"""File of the repository -> page of the site."""
ALONE = {"index.md", "reference.md"}
"""Tabs of one page, which need no list of pages beside them."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def outside_pages() -> dict[str, str]:
    """Every page that lives outside of docs/, with its place in the site."""
    examples = {path.relative_to(ROOT).as_posix(): path for path in ROOT.glob("examples/*/README.md")}
    return {
        **OUTSIDE,
        "examples/README.md": "examples/index.md",
        **{name: f"examples/{path.parent.name}.md" for name, path in examples.items()},
    }


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside."""
    for name, place in outside_pages().items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite the links of one page."""
    places = outside_pages()
    here = page.file.src_uri
    if here in ALONE:
        page.meta["hide"] = ["navigation"]
    home = next((name for name, place in places.items() if place == here), f"docs/{here}")

    def rewrite(found: re.Match[str]) -> str:
        mark, text, target, anchor = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
        if path in places or path.startswith("docs/"):
            place = places.get(path) or path.removeprefix("docs/")
            place += "/README.md" if (ROOT / path).is_dir() else ""
            return f"{mark}[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor or ''})"
        return text if (ROOT / path).exists() else found[0]

    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if number % 2 else LINK.sub(rewrite, part) for number, part in enumerate(parts))
