"""Do the files for people who join agree with the project: version, checks, hooks, templates?"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from memfit.version import VERSION

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_has_the_version_of_the_package():
    citation = read("CITATION.cff")
    assert str(citation["version"]) == VERSION
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_public_workflow_runs_every_part_that_ci_runs_and_the_docs():
    parts = set(re.findall(r'^\s*part "[^"]+" (\S+)', (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE))
    targets = set(read(".github/workflows/ci.yml")["jobs"]["part"]["strategy"]["matrix"]["target"])
    assert parts
    assert targets == parts | {"docs"}
    assert targets <= TARGETS


def test_every_hook_runs_a_tool_of_the_checks():
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert {tuple(shlex.split(hook["entry"])[:2]) for hook in hooks} == {
        (".venv/bin/ruff", "check"), (".venv/bin/ruff", "format"), (".venv/bin/pyright", "--warnings"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "README.md", "docs/release.md", ".github/pull_request_template.md"]
)
def test_every_make_target_that_a_page_names_exists(page: str):
    named = set(re.findall(r"make ([a-z][a-z-]*)\b", re.sub(r"[Mm]ake it", "", (ROOT / page).read_text("utf-8"))))
    assert named & TARGETS
    assert {word for word in named if f"`make {word}" in (ROOT / page).read_text("utf-8")} <= TARGETS


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_an_issue_form_has_what_the_host_asks_for(path: Path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        return
    assert {"name", "description", "body"} <= form.keys()
    assert all({"type", "id", "attributes"} <= field.keys() for field in form["body"])


def test_the_planner_that_contributing_shows_can_be_written_as_shown():
    from memfit.testing.contracts.planner import PlannerContract

    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    assert issubclass(names["TestKeepEverything"], PlannerContract)
