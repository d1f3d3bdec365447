"""Request and reply between the predicting process and the child with the phantom GPU; plain data only."""

from __future__ import annotations

import msgspec

from memfit.job.description import JobDescription
from memfit.predict.child.messages import FUNCTION_STEPS, Failure
from memfit.predict.devices.catalogue import GpuProperties
from memfit.predict.lengths import Survey
from memfit.predict.options import PredictOptions
from memfit.predict.ranks.rank_evidence import RankEvidence
from memfit.records.prediction import Assumption, FailedAllocation
from memfit.records.timeline import Timeline


class PhantomRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Run this job on a phantom of this device."""

    job: JobDescription
    options: PredictOptions
    gpu: GpuProperties
    total_bytes: int
    context_bytes: int
    library_folder: str
    cudnn_folder: str = ""
    scratch_folder: str = ""
    report_folder: str = ""
    """Where the child writes down every second what it is doing; empty for nowhere."""
    snapshot_path: str = ""
    """Where to leave the snapshot in torch's own layout; empty for nowhere."""
    answers: dict[str, float] = {}
    """What is said where an unknown value is read, by place ('train.py:33')."""
    follow_values: bool = True
    """Keep the true values of small integers and masks; without, every value that is read is zero."""
    mail: dict[str, str] = {}
    """Shapes that stages of a pipeline on other ranks send to this one."""
    watch: bool = True
    """Follow modules and phases; without, only the allocator's own record is kept."""

    @property
    def num_steps(self) -> int:
        """The steps to run."""
        return self.options.num_steps or FUNCTION_STEPS


class PhantomReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A job that was run on a phantom."""

    timeline: Timeline
    torch_version: str
    cuda_version: str
    num_steps: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    """Peaks, as `torch.cuda.memory_stats` counts them."""
    num_retries: int
    """How often the allocator gave its cache back to find room."""
    num_launches: int
    num_plans: int
    run_seconds: float
    explain_seconds: float
    """From the end of the run to the timeline."""
    step_seconds: tuple[float, ...]
    step_processor_seconds: tuple[float, ...]
    """Of each step with its recording, by the clock and of all threads."""
    host_peak_bytes: int
    assumptions: tuple[Assumption, ...]
    survey: Survey | None = None
    """The batches of an epoch, where they were chosen."""
    failed: FailedAllocation | None = None
    traceback: str = ""
    """Of the failed allocation."""
    evidence: RankEvidence = RankEvidence()
    """What the rank's number decided."""


Answer = PhantomReply | Failure
