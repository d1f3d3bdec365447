"""What the tests of measuring share: running small programs under the real sampler."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from memfit import api
from memfit.records.run import Settings

MIB = 1 << 20

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: every job would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., api.CommandResult]:
    """Run Python source (or a command) under the sampler and return its result."""

    def run(source: str | list[str], *, grace_seconds: float = 1.0, **settings) -> api.CommandResult:
        command = source if isinstance(source, list) else [sys.executable, "-c", textwrap.dedent(source)]
        settings = {"interval_seconds": 0.01, "marks": False, **settings}
        return api.measure_command(
            command, output=tmp_path / "run", overwrite=True, settings=Settings(**settings), grace_seconds=grace_seconds
        )

    return run
