"""How many functions of memfit stand between `memfit predict train.py` and the first line of train.py?

`python -m pytest tests/predict/test_call_depth.py -s` prints both stacks.
"""

from __future__ import annotations

import subprocess
import traceback
from pathlib import Path

import pytest

pytest.importorskip("torch")

import memfit
from memfit.commands.predict import command

PACKAGE = str(Path(memfit.__file__).parent)
MOST_CALLS = 9
"""In each of the two processes; a reader who follows the call from one end to the other passes so many functions."""
SCRIPT = """
import sys, traceback
sys.stderr.write("".join(f"STACK\\t{f.filename}\\t{f.name}\\n" for f in traceback.extract_stack()))
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def ours(frames: list[tuple[str, str]]) -> list[str]:
    """'predict/predict.py predict' for every function of memfit; what stands at the top of a file is no call."""
    own = [(path, name) for path, name in frames if path.startswith(PACKAGE) and name != "<module>"]
    return [f"{path.removeprefix(PACKAGE)[1:]} {name}" for path, name in own]


def test_a_reader_passes_few_functions_before_the_first_line_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    parents: list[list[str]] = []

    class Watched(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **kwargs: object) -> None:
            parents.append(ours([(frame.filename, frame.name) for frame in traceback.extract_stack()]))
            super().__init__(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]

    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setattr(subprocess, "Popen", Watched)
    options = ["--show-output", "--no-probes", "--engine", "fake"]
    command.main([str(tmp_path / "train.py"), *options], standalone_mode=False)
    lines = [line.split("\t") for line in capfd.readouterr().err.splitlines() if line.startswith("STACK\t")]
    (parent,), child = parents, ours([(path, name) for _, path, name in lines])
    with capfd.disabled():
        print(f"\nparent, {len(parent)}: " + " > ".join(parent) + f"\nchild, {len(child)}: " + " > ".join(child))
    assert parent[0] == "commands/predict.py command"
    assert child[-1] == "predict/child/run_script.py run_as_main"
    assert len(parent) <= MOST_CALLS
    assert len(child) <= MOST_CALLS
