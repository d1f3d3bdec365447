"""Interface of prediction engines: what an engine is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from memfit.job.description import JobDescription
from memfit.predict.child.fork_server import ForkServer
from memfit.predict.child.instruction_sets import AskProcessor
from memfit.predict.child.probe_cache import KnownProbes
from memfit.predict.devices.parse import DeviceSpec
from memfit.predict.lengths import Survey
from memfit.predict.options import PredictOptions
from memfit.predict.ranks.rank_evidence import RankEvidence
from memfit.records.figure import Figure
from memfit.records.prediction import Assumption, FailedAllocation, Level
from memfit.records.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A job, a device, and how to predict the one on the other."""

    job: JobDescription
    device: DeviceSpec
    options: PredictOptions
    function: Callable[..., Any] | None = None
    """A callable of this process that is the job."""
    with_smallest: bool = True
    """Also find the least memory in which the job would run."""
    looks_here: bool = True
    """Also find the range up to the threads of this machine (CPU)."""
    fork_server: ForkServer | None = None
    """Where to trace when many predictions are wanted."""
    known_probes: KnownProbes | None = None
    """What other predictions of the same job have probed; None where this one stands alone."""
    tell: Callable[[str], None] | None = None
    """Called every second, from the second one on, with what the prediction is doing."""
    ask_processor: AskProcessor | None = None
    """Knows which instruction sets work here; None where that is not to be asked."""
    mail: Mapping[str, str] = field(default_factory=dict)
    """Shapes that stages of a pipeline on other ranks send to this one."""

    def about(self, job: JobDescription) -> Question:
        """The same question about another job."""
        return replace(self, job=job)

    @property
    def num_steps(self) -> int:
        """The steps to trace; the options that reach an engine name them."""
        assert self.options.num_steps is not None
        return self.options.num_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What an engine found: the timeline of one device, and everything that is not read off it."""

    timeline: Timeline
    where: str
    """The device of the timeline whose peak counts."""
    route: str
    torch_version: str
    num_steps: int
    num_threads: int | None = None
    """CPU threads of operators that the figures are for."""
    levels: tuple[Level, ...]
    step_time: Figure
    assumptions: tuple[Assumption, ...]
    error_band: str
    device: DeviceSpec
    """With what the engine had to assume of it."""
    failed: FailedAllocation | None
    survey: Survey | None
    trace_seconds: float
    probe_seconds: float
    host_peak_bytes: int
    num_operators: int
    evidence: RankEvidence = field(default_factory=RankEvidence)
    """What the rank's number decided."""


class Engine(Protocol):
    """Runs a job on a device that may not be there. `FakeEngine` and `PhantomEngine` pass `testing.EngineContract`."""

    @property
    def name(self) -> str:
        """As in `--engine NAME`."""
        ...

    @property
    def cannot(self) -> Mapping[str, str]:
        """Options it cannot honour, each with the reason."""
        ...

    def run(self, question: Question) -> Traced:
        """Run the job and say what it took."""
        ...
