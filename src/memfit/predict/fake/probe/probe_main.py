"""Start of the probe process: gives up writing, keeps bytecode, then loads torch and answers (`process.py`)."""

from __future__ import annotations

import importlib
import os

from memfit.predict.child.bytecode import VARIABLE, spool_bytecode
from memfit.predict.sandbox.read_only import forbid_writing_outside


def main() -> None:
    """Answer one request."""
    folder = os.environ.pop(VARIABLE, "")
    spool_bytecode(folder)
    if folder:
        forbid_writing_outside([folder])
    importlib.import_module("memfit.predict.fake.probe.process").main()


if __name__ == "__main__":
    main()
