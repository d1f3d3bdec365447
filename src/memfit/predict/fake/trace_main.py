"""Start of the child process of one prediction: sends the probe process on its way, then loads torch (`child_main.py`).

`python -m memfit.predict.fake.trace_main REQUEST REPLY`. Both processes import torch at the same time.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import msgspec

from memfit.predict.child.messages import TraceRequest
from memfit.predict.fake.probe.client import probe_for


def main() -> None:
    """Answer the request named on the command line."""
    request_path, reply_path = sys.argv[1:3]
    request = msgspec.json.decode(Path(request_path).read_bytes(), type=TraceRequest)
    probe = probe_for(request)
    importlib.import_module("memfit.predict.fake.child_main").answer_to_file(request, reply_path, probe)


if __name__ == "__main__":
    main()
