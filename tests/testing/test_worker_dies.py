"""A worker of the test session dies: does only its test fail, and is nothing imported half afterwards?"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SESSION = """
import builtins, os, signal
import pytest
import torch

@pytest.mark.parametrize("number", range(6))
def test_that_passes(number):
    assert number + 1 > number

def test_that_kills_its_worker():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.parametrize("number", range(6))
def test_that_breaks_an_import_and_compiles(number, monkeypatch):
    # In a worker that has not imported it whole, this leaves half of torch._dynamo behind.
    plain = builtins.__import__
    def breaking(name, *args, **kwargs):
        if name == "torch._higher_order_ops.invoke_subgraph":
            raise ImportError(name)
        return plain(name, *args, **kwargs)
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", breaking)
        try:
            import torch._dynamo
        except ImportError:
            pass
    assert torch.compile(lambda x: x + number, backend="eager")(torch.ones(2)).sum() == 2 + 2 * number
"""


@pytest.mark.slow
def test_only_the_test_of_the_killed_worker_fails(tmp_path: Path):
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_session.py").write_text(SESSION)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--shuffle", "2", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    assert counts == {"passed": 12, "failed": 1}, done.stdout[-3000:]
    assert "worker 'gw" in done.stdout
    assert "test_that_kills_its_worker" in done.stdout
