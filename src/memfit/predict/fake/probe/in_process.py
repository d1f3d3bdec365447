"""Probes in this very process, for callers whose jobs are smaller than the import of torch that a new process needs.

A call that crashes takes the caller with it, and nothing is said of a bare process: `memfit predict` does not use it.
"""

from __future__ import annotations

from memfit.predict.fake.probe.client import Probed, ProbeProcess, result_of
from memfit.predict.fake.probe.process import attempt


class ProbesHere(ProbeProcess):
    """Answers the engine's questions about what operators allocate in this very process."""

    def __init__(self) -> None:
        pass

    def ask(self, texts: dict[int, str], **_: object) -> Probed:
        """Run each distinct call once for real."""
        replies = {number: attempt(text) for number, text in texts.items()}
        skipped = {number: str(reply["skipped"]) for number, reply in replies.items() if "skipped" in reply}
        results = {number: result_of(reply) for number, reply in replies.items() if "skipped" not in reply}
        return Probed(results=results, skipped=skipped)

    def close(self) -> None:
        """Nothing was started."""
