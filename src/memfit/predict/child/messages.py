"""Request and reply between the predicting process and the child that traces the job; plain data only."""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.job.description import JobDescription
from memfit.predict.child.probe_cache import KnownProbes
from memfit.predict.gpu_rules.cudnn import Scratch
from memfit.predict.lengths import Survey
from memfit.predict.options import PredictOptions
from memfit.predict.ranks.rank_evidence import RankEvidence
from memfit.records.prediction import Assumption
from memfit.records.timeline import Timeline

UNSEEN = "not seen"
"""The kind of an assumption that says what of the job has no part in the figures."""
COMPILER_LEFT_OUT = "torch.compile was left out"
"""How the assumption begins that says so."""
TRANSLATED = "fake cpu, translated to cuda"
"""The route of a job that was traced on fake CPU tensors for a GPU."""


FUNCTION_STEPS = 2
"""Two steps show everything: the first allocates gradients, its update the optimizer's state."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Trace this job on fake tensors."""

    job: JobDescription
    device: Literal["cpu", "cuda"]
    options: PredictOptions = PredictOptions()
    answers: dict[str, float] = {}
    """What reading an unknown value gives, by place: 'train.py:33'."""
    scratch_folder: str = ""
    gpu_name: str = ""
    gpu_bytes: int = 0
    capability: tuple[int, int] = (8, 0)
    num_processors: int = 108
    threads_per_processor: int = 2048
    gemm_workspace_bytes: int = 0
    translate: bool = False
    """Trace on fake cpu tensors and translate to cuda, because fake cuda tensors do not work here."""
    most_probe_seconds: float = 15.0
    num_threads: int | None = None
    """Threads of the real run, where the child cannot know: it is a forked copy with one thread of its own."""
    looks_here: bool = True
    """Also find the peak with the threads that torch takes on this machine, where nothing names a number."""
    writable_folder: str = ""
    """The only folder the child may write to; empty leaves that open."""
    known_probes: KnownProbes | None = None
    """What other predictions of the job have probed; None where this one stands alone."""
    environment: dict[str, str] = {}
    """What the children of this prediction get beside our own environment."""
    mail: dict[str, str] = {}
    """Shapes that stages of a pipeline on other ranks send to this one."""

    @property
    def num_steps(self) -> int:
        """The steps to trace."""
        return self.options.num_steps or FUNCTION_STEPS


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The trace did not come to an end."""

    kind: Literal["usage", "script", "data", "operator", "no step", "processes", "route", "missing", "rank"]
    what: str
    found: str = ""
    hint: str = ""
    traceback: str = ""
    signal: str = ""
    needs_rank: int | None = None
    """The rank that is to be predicted before, since this one needs the shapes that it sends."""
    mail: dict[str, str] = {}
    """Shapes that stages of this rank have sent before it had to wait."""


class TraceReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A traced job."""

    timeline: Timeline
    route: str
    torch_version: str
    num_steps: int
    num_operators: int
    trace_seconds: float
    probe_seconds: float
    host_peak_bytes: int
    assumptions: tuple[Assumption, ...]
    optimizer: str = ""
    baseline_bytes: int | None = None
    data_bytes: int = 0
    """What the job's data set will hold in memory of the host."""
    untouched_bytes: int = 0
    """How far resident memory stays below the tensors' peak, since kernels asked for memory they do not write to."""
    num_threads: int | None = None
    """CPU threads of operators that the timeline is for; None on a GPU and without probes."""
    here_bytes: int | None = None
    """The tensors' peak with the threads that torch takes on this machine, where it was looked at."""
    num_probed: int = 0
    num_unprobed: int = 0
    probe_signal: str = ""
    """The signal that ended the probe process, 'SIGILL'; empty where none did."""
    probe_end: str = ""
    """How the probe process ended before it had answered everything, for a person."""
    half_flops: float = 0.0
    single_flops: float = 0.0
    moved_bytes: float = 0.0
    num_calls: int = 0
    """Work of the last whole step."""
    flops_per_second: float | None = None
    bytes_per_second: float | None = None
    """Rates timed on this machine, for the CPU."""
    scratches: tuple[Scratch, ...] = ()
    """Calls of cuDNN, with what each could take."""
    survey: Survey | None = None
    """The batches of an epoch, where they were chosen."""
    found_probes: KnownProbes | None = None
    """What was probed now, for the next request; None where this prediction stands alone."""
    evidence: RankEvidence = RankEvidence()
    """What the rank's number decided."""


Reply = Failure | TraceReply
