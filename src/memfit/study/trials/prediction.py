"""Prediction before a trial starts: whether its point can fit, in a thread of its own beside the coordinator.

Only workloads are predicted: what a command does is not known before it runs. A point is rejected when even the lower
end of its prediction is above the limit; where nothing can be predicted, the trial is run, and the reason is kept.

The coordinator hands over a point and goes on with the trials that run; it looks for the answer between two rounds. One
process with torch loaded (a fork server) answers all points, each in a copy of itself, so that the second prediction
does not wait for imports. One point is predicted at a time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING

from memfit.errors import MemfitError
from memfit.records.figure import Figure, unknown
from memfit.records.study import Proposal, StudySettings, TrialOutcome
from memfit.study.space.space import fingerprint
from memfit.study.trials.trial_order import parameters_for_workload
from memfit.units import format_bytes

if TYPE_CHECKING:
    from memfit.predict.child.fork_server import ForkServer
    from memfit.predict.child.probe_cache import KnownProbes

MOST_SECONDS = 120.0


class TrialPredictor:
    """Predicts the peaks of points, each once, while the caller does something else."""

    def __init__(self, settings: StudySettings, *, wanted: bool = True) -> None:
        self.settings = settings
        self.is_on = bool(settings.workload) and wanted
        self.waiting: Proposal | None = None
        """The point that is being predicted."""
        self._known: dict[str, Figure] = {}
        self._asked: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Figure] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._source = PointPredictions(settings.workload)

    @property
    def is_busy(self) -> bool:
        """Whether a point is being predicted; then no other may be handed over."""
        return self.waiting is not None

    def begin(self, proposal: Proposal) -> None:
        """Predict a point; `finished` gives it back."""
        assert self.waiting is None
        self.waiting = proposal
        built_with = parameters_for_workload(self.settings, proposal.parameters)
        known = self._known.get(fingerprint(built_with))
        if known is not None:
            self._answers.put(known)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="memfit-prediction", daemon=True)
            self._thread.start()
        self._asked.put(built_with)

    def finished(self, most_seconds: float = 0.0) -> tuple[Proposal, Figure] | None:
        """The point with its predicted peak, when it is there within so long."""
        if self.waiting is None:
            return None
        try:
            peak = self._answers.get(timeout=most_seconds) if most_seconds else self._answers.get_nowait()
        except queue.Empty:
            return None
        proposal, self.waiting = self.waiting, None
        self._known[fingerprint(parameters_for_workload(self.settings, proposal.parameters))] = peak
        return proposal, peak

    def close(self) -> None:
        """Give up what is being predicted, with its processes."""
        self.waiting = None
        if self._thread is not None:
            self._asked.put(None)
            self._source.close()

    def _work(self) -> None:
        """In the thread: one point after the other; whatever goes wrong is an answer."""
        while (built_with := self._asked.get()) is not None:
            try:
                peak = self._source.peak(built_with)
            except MemfitError as error:
                peak = unknown("bytes", f"no prediction: {error.what}")
            except Exception as error:
                peak = unknown("bytes", f"no prediction: {type(error).__name__}: {error}")
            self._answers.put(peak)
        self._source.close()


class PointPredictions:
    """Peaks of a workload's processes, traced by one fork server; what one point has probed the next ones know."""

    def __init__(self, workload: str) -> None:
        self.workload = workload
        self._server: ForkServer | None = None
        self._known_probes: KnownProbes | None = None

    def peak(self, built_with: dict[str, object]) -> Figure:
        """The predicted peak of the process at one point."""
        from dataclasses import replace

        from memfit.measure.instruction_sets import ask_processor
        from memfit.predict.choose_engine import choose_engine
        from memfit.predict.fake.engine import FakeEngine
        from memfit.predict.options import PredictOptions
        from memfit.predict.predict import ask, predict_once, predict_reply
        from memfit.torch_support import require_supported_torch

        require_supported_torch("prediction")
        options = PredictOptions(most_seconds=MOST_SECONDS, threads=0)  # as its trials run here
        question = ask(self.workload, options, settings=built_with, ask_processor=ask_processor)
        engine = choose_engine(question)
        if not isinstance(engine, FakeEngine):
            prediction = predict_once(engine, question)
        else:
            server = self._started()
            question = replace(question, fork_server=server, with_smallest=False, known_probes=self._known_probes)
            reply = engine.trace(question)
            if reply.found_probes is not None and self._known_probes is not None:
                self._known_probes = self._known_probes.joined(reply.found_probes)
            prediction = predict_reply(engine, question, reply)
        return prediction.level("process") or unknown("bytes", "the prediction has no figure for a process")

    def _started(self) -> ForkServer:
        from memfit.predict.child.fork_server import ForkServer
        from memfit.predict.child.probe_cache import KnownProbes

        if self._server is None:
            self._server, self._known_probes = ForkServer(MOST_SECONDS), KnownProbes()
        return self._server

    def close(self) -> None:
        """End the server; a prediction that it is at ends as well."""
        if self._server is not None:
            with contextlib.suppress(OSError, ValueError):
                self._server.__exit__(None, None, None)


def verdict(peak: Figure | None, limit_bytes: int | None) -> TrialOutcome | None:
    """The rejection of a point that cannot fit; None when it may."""
    if peak is None or limit_bytes is None:
        return None
    least = peak.low if peak.low is not None else peak.value  # a process's peak may be known as a range only
    if least is None or least <= limit_bytes:
        return None
    message = f"it would need at least {format_bytes(least)} ({peak.method or 'predicted'})"
    return TrialOutcome(kind="rejected by prediction", message=f"{message}; the limit is {format_bytes(limit_bytes)}")
