"""Does every verb have an example that runs, and does every command that the docs show parse?"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from memfit.commands import VERBS, cli

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NEEDS_TORCH = {"measure", "predict", "fit", "doctor", "compare"}
"""Each takes seconds to import torch, more than once."""
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(EXAMPLES.glob("*/README.md"))]
FENCE = re.compile(r"^```\w*\n(.*?)^```|((?:^    .*\n)+)", re.DOTALL | re.MULTILINE)
PLACEHOLDERS = re.compile(r"\[|\.\.\.|\b(COMMAND|RUN|FOLDER|FILE|TARGET|SNAPSHOT|ADDRESS|NAME|PID)\b|[{|<$]|ARGS")


def scripts() -> list[object]:
    return [
        pytest.param(path.parent.name, marks=[pytest.mark.slow] if path.parent.name in NEEDS_TORCH else [])
        for path in sorted(EXAMPLES.glob("*/run.sh"))
    ]


def test_every_verb_has_an_example():
    there = {path.parent.name for path in EXAMPLES.glob("*/run.sh")}
    assert set(VERBS) - there == set(), "write examples/VERB/run.sh and README.md, then `make readme`"
    assert all((EXAMPLES / verb / "README.md").is_file() for verb in there)


@pytest.mark.parametrize("verb", scripts())
def test_an_example_runs(verb: str, tmp_path: Path):
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("memfit-runs", "__pycache__"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "NO_COLOR": "1", "MEMFIT_NNI_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        ["sh", "-e", "run.sh"], cwd=tmp_path / "examples" / verb, env={**os.environ, **own},
        capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr


def shown_commands() -> list[tuple[str, str]]:
    """(page, command) of every `memfit ...` line in a code block of a page; what holds placeholders is left out."""
    found: list[tuple[str, str]] = []
    for page in PAGES:
        for fenced, indented in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in (fenced or indented).replace("\\\n", "").splitlines():
                command = re.sub(r"\s{2,}.*|\s+#.*", "", line.strip().removeprefix("$ "))
                if re.match(r"memfit [^\d]", command) and not PLACEHOLDERS.search(command):
                    found.append((page.name, command))
    return sorted(set(found))


def parse(words: list[str]) -> None:
    """Let the real command line read the words, and run nothing."""
    context = click.Context(cli, info_name="memfit")
    name, command, rest = cli.resolve_command(context, list(words))
    while isinstance(command, click.Group):
        if not rest and command.invoke_without_command:
            return
        inner = click.Context(command, info_name=name, parent=context)
        name, command, rest = command.resolve_command(inner, rest)
    assert command is not None
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(("page", "command"), shown_commands())
def test_a_command_that_a_page_shows_parses(page: str, command: str):
    parse(shlex.split(command)[1:])


def test_a_command_that_does_not_exist_is_caught():
    with pytest.raises(click.UsageError):
        parse(["measure", "--no-such-option", "--", "true"])
    with pytest.raises(click.UsageError):
        parse(["meassure"])
    assert len(shown_commands()) > 30
