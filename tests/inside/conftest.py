"""Runs small programs under the start-up hook, as `memfit measure` does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hooked_python import HookedRun, hook_environment


@pytest.fixture
def hooked(tmp_path: Path) -> Callable[..., HookedRun]:
    """Run a program text under the hook."""

    def run(program: str, *, flags: tuple[str, ...] = (), folder: Path | None = None, **more: str) -> HookedRun:
        target = folder or tmp_path / "run"
        if folder is None:
            target.mkdir(exist_ok=True)
        script = tmp_path / "job.py"
        script.write_text(textwrap.dedent(program))
        command = [sys.executable, *flags, str(script)]
        environment = hook_environment(target, **more)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        return HookedRun(folder=target, returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)

    return run
