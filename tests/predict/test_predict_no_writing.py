"""Can any code of a job change a file, in Python or below it? And what if the kernel offers no help?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memfit.predict.sandbox import read_only  # noqa: E402

WRITES_IN_C = """
import ctypes, os, torch
libc = ctypes.CDLL(None, use_errno=True)
descriptor = libc.open({path!r}.encode(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
print("descriptor", descriptor, os.strerror(ctypes.get_errno()))
libc.unlink({victim!r}.encode())
libc.rename({victim!r}.encode(), {path!r}.encode())
torch._C.PyTorchFileWriter  # the zip writer of torch.save is C++ too
try:
    torch._C.PyTorchFileWriter({path!r} + ".zip")
except RuntimeError as error:
    print(error)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def needs_landlock() -> None:
    code = "import sys; from memfit.predict.sandbox.read_only import forbid_writing_outside as f; sys.exit(bool(f([])))"
    if subprocess.run([sys.executable, "-c", code]).returncode:
        pytest.skip("this kernel has no Landlock")


def predict(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "memfit", "predict", "train.py", "--no-probes", "--show-output"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_compiled_code_of_a_script_writes_removes_and_renames_nothing(tmp_path: Path):
    needs_landlock()
    victim = tmp_path / "precious.txt"
    victim.write_text("keep me")
    before = {path.name for path in tmp_path.iterdir()} | {"train.py"}
    done = predict(tmp_path, WRITES_IN_C.format(path=str(tmp_path / "written"), victim=str(victim)))
    assert done.returncode == 0, done.stderr
    assert "descriptor -1 Permission denied" in done.stderr
    assert victim.read_text() == "keep me"
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_process_may_still_write_below_the_folder_it_named(tmp_path: Path):
    needs_landlock()
    code = f"""
from memfit.predict.sandbox.read_only import forbid_writing_outside
(mine, other) = ({str(tmp_path / "mine")!r}, {str(tmp_path / "other")!r})
assert forbid_writing_outside([mine]) == ""
open(mine + "/a", "w").write("a")
try:
    open(other + "/b", "w")
except PermissionError:
    print("refused")
"""
    (tmp_path / "mine").mkdir()
    (tmp_path / "other").mkdir()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "refused", done.stderr
    assert (tmp_path / "mine" / "a").read_text() == "a"


def test_a_system_without_landlock_gets_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_only.platform, "machine", lambda: "riscv128")
    assert "no Landlock" in read_only.forbid_writing_outside(["."])


CALLABLE = """
import ctypes, os, sys
import torch, memfit

target, victim = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    libc.open(target.encode(), os.O_WRONLY | os.O_CREAT, 0o644)
    libc.unlink(victim.encode())
    with open(target + ".txt", "w") as stream:
        stream.write("from Python")

print(memfit.predict_peak(step, probes=False).levels[0].figure.value)
open(victim, "a").write(" and the process itself may write")
"""


def test_a_callable_is_kept_from_writing_and_its_process_is_not(tmp_path: Path):
    needs_landlock()
    victim = tmp_path / "precious.txt"
    victim.write_text("keep me")
    command = [sys.executable, "-c", CALLABLE, str(tmp_path / "written"), str(victim)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0
    assert {path.name for path in tmp_path.iterdir()} == {"precious.txt"}
    assert victim.read_text() == "keep me and the process itself may write"
