"""Do two versions answer alike? python -m benchmarks.json_of_versions COMMIT: --json of 20 commands, old beside new.

The older version is checked out beside this one and run by the same interpreter in the same folder, on the same
records. What depends on the moment (times, paths, process numbers, versions, what this version answers otherwise when
asked again) is left out; measured commands are compared by the names of their fields and the types of the values.
Exit code 1 where an answer differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.overhead.report import print_table

HERE = Path(__file__).parents[1]
MOMENTARY = re.compile(
    r"seconds|_at$|path|folder|file|pid|version|run_id|per_second|^time|step_time|digest|_us$|_ns$|created|host_peak_bytes"
)
MEASURED_LEVEL = "process"
"""Its figure has what the imports take in it, as measured here."""
OWN_LINE = re.compile(r"\w+\.py:\d+")
"""A line of a file: of memfit's own workloads as well, in which lines move."""
MOST_SHOWN = 6
ALIKE = "alike"
SCRIPT = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
print("done")
"""
GRAPH_RANKS = ("--ranks", "2", "--memory", "1GiB", "--link", "1GB/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, and whether its numbers are the same at every run."""

    name: str
    words: tuple[str, ...]
    is_measured: bool = False


COMMANDS = (
    Command(name="predict a workload", words=("predict", "mlp")),
    Command(name="predict with settings", words=("predict", "gpt", "--set", "layers=2", "--set", "length=64")),
    Command(name="predict a convolutional network", words=("predict", "cnn")),
    Command(name="predict a recurrent network", words=("predict", "lstm")),
    Command(name="predict for a card", words=("predict", "gpt", "--device", "cuda:a100-40gb", "--engine", "fake")),
    Command(
        name="predict for a small card", words=("predict", "resnet18", "--device", "cuda:2GiB", "--engine", "fake")
    ),
    Command(name="predict a script", words=("predict", "train.py")),
    Command(name="predict, no such file", words=("predict", "missing.py")),
    Command(name="compare", words=("compare", "mlp", "--optimizer", "sgd,adam", "--technique", "plain,bf16")),
    Command(name="compare with a budget", words=("compare", "mlp", "--optimizer", "adam", "--budget", "1MiB")),
    Command(name="fit for a card", words=("fit", "gpt", "--device", "cuda:1GiB", "-o", "plan-card.json", "-f")),
    Command(name="fit", words=("fit", "mlp", "--budget", "1GiB", "-o", "plan.json", "-f"), is_measured=True),
    Command(
        name="fit, too small", words=("fit", "mlp", "--budget", "1KiB", "-o", "plan-no.json", "-f"), is_measured=True
    ),
    Command(name="pipeline", words=("pipeline", "gpt", *GRAPH_RANKS, "--device", "cuda:a100-40gb")),
    Command(name="show a run", words=("show", "run-a")),
    Command(name="diff two runs", words=("diff", "run-a", "run-b")),
    Command(name="show a study", words=("study", "show", "study")),
    Command(name="explain a study", words=("explain", "study")),
    Command(name="reproduce", words=("reproduce",)),
    Command(name="doctor", words=("doctor",), is_measured=True),
)


def main() -> int:
    """Make the records, ask both versions, print what differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.json_of_versions", description=__doc__)
    parser.add_argument("commit", help="the older version")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memfit-versions-") as place, _checked_out(arguments.commit, place) as old:
        work = Path(place) / "work"
        work.mkdir()
        _make_records(work)
        rows = []
        for command in COMMANDS:
            rows.append(_row(command, work, old))
            print(": ".join(rows[-1]), flush=True)
    print_table(f"--json of {arguments.commit} beside this version", ("command", "exit codes", "answers"), rows)
    num_alike = sum(row[2].startswith(ALIKE) for row in rows)
    print(f"{num_alike} of {len(rows)} alike")
    return 0 if num_alike == len(rows) else 1


@contextlib.contextmanager
def _checked_out(commit: str, place: str) -> Iterator[Path]:
    """A work tree of a commit, gone at the end."""
    folder = Path(place) / "old"
    subprocess.run(["git", "worktree", "add", "-q", "--detach", folder, commit], cwd=HERE, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=HERE, check=True)


def _make_records(work: Path) -> None:
    """Two runs and a study, by this version."""
    (work / "train.py").write_text(SCRIPT, encoding="utf-8")
    (work / "space.json").write_text('{"width": {"_type": "choice", "_value": [8, 64, 256]}}', encoding="utf-8")
    for name in ("run-a", "run-b"):
        _ask(HERE, work, ("measure", "-q", "--no-report", "-o", name, "--", sys.executable, "train.py"))
    options = ("--space", "space.json", "--trials", "3", "--no-figures", "-q", "-o", "study")
    made = _ask(HERE, work, ("study", *options, "mlp"))
    if made.returncode:
        raise RuntimeError(f"the study could not be made:\n{made.stderr}")


def _ask(source: Path, work: Path, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    command = [sys.executable, "-m", "memfit", *words]
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)


def _row(command: Command, work: Path, old: Path) -> tuple[str, str, str]:
    """Old beside new; the new version is asked twice, and what differs between its own answers counts for neither."""
    words = (*command.words, "--json")
    before, now, again = (_ask(source, work, words) for source in (old, HERE, HERE))
    facts = [_facts(answer.stdout, command.is_measured) for answer in (before, now, again)]
    varying = _differing(facts[1], facts[2])
    differing = sorted(_differing(facts[0], facts[1]) - varying)
    if not (before.stdout or now.stdout):  # a refusal: the sentence counts
        differing = [] if before.stderr == now.stderr else ["the sentence of the refusal"]
    if before.returncode != now.returncode:
        differing.insert(0, "exit codes")
    more = f" and {len(differing) - MOST_SHOWN} more" if differing[MOST_SHOWN:] else ""
    besides = f" ({len(varying)} values differ at every run)" if varying else ""
    answer = f"differ: {', '.join(differing[:MOST_SHOWN])}{more}" if differing else ALIKE
    return command.name, f"{before.returncode} {now.returncode}", answer + besides


def _differing(one: dict[str, object], other: dict[str, object]) -> set[str]:
    """Places at which two answers do not say the same."""
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def _facts(text: str, is_measured: bool) -> dict[str, object]:
    """Every value by its place in the answer; of a measured one the type alone."""
    try:
        answer = json.loads(text) if text else {}
    except ValueError:
        return {"no JSON": text}
    return {place: type(value).__name__ if is_measured else value for place, value in _leaves(answer, "")}


def _leaves(value: object, place: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        is_measured = value.get("name") == MEASURED_LEVEL
        for name, inner in value.items():
            if not MOMENTARY.search(str(name)) and not (is_measured and name == "figure"):
                yield from _leaves(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{index}]")
    else:
        yield place, OWN_LINE.sub("a line", value) if isinstance(value, str) else value


if __name__ == "__main__":
    sys.exit(main())
