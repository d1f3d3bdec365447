"""Options of a prediction: one record from the command line to the engine and the child process that obey it."""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.predict.lengths import AUTO
from memfit.predict.ranks.environment import Ranks

EngineName = Literal["auto", "fake", "phantom"]


class PredictOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is predicted; what the job is stands in its description. Names are those of `memfit predict`."""

    device: str = "cpu"
    """'cpu', 'cuda', 'cuda:a100-40gb', 'cuda:24GiB'."""
    memory: str | None = None
    """Memory of the device, such as '24GiB'; beyond it the job does not fit."""
    num_steps: int | None = None
    """Optimizer steps to trace; None for as many as show everything (a script 3, a function 2)."""
    malloc: Literal["default", "pinned"] = "default"
    """The C heap's threshold for own mappings (CPU)."""
    alloc_conf: str = ""
    """As PYTORCH_ALLOC_CONF (GPU)."""
    threads: int | None = None
    """CPU threads of operators in the real run; 0 for torch's choice on this machine. None: what the environment names,
    else one, and a range up to torch's choice. A job that sets the number itself has its own."""
    probes: bool = True
    """Run distinct operator calls once for real, to learn what they allocate inside (CPU)."""
    allow_real: tuple[str, ...] = ()
    """Operators without a fake kernel that may run for real, as 'mylib::name'."""
    unknown_is: bool = True
    """The answer to a boolean that is not known."""
    answer: tuple[str, ...] = ()
    """What reading an unknown value gives, as 'train.py:33=0.5'."""
    sweep: str | None = None
    """'batch_size=1:256': the peak over one setting."""
    fit_batch: bool = False
    """Find the largest batch_size that fits."""
    lengths: str | None = None
    """A file of lengths, or 'auto' for those of a script's own batches."""
    ranks: int = 1
    """Size of the process group."""
    rank: int | Literal["all"] = 0
    """Which of them; 'all' for one prediction of every rank that differs from the others."""
    routing: str | None = None
    """Where the tokens of a mixture of experts go: 'even', 'worst', or a file of shares; None leaves it unknown."""
    shard: str | None = None
    """'ddp', 'zero1', 'zero2', 'zero3' or 'fsdp': torch's own code that is put on a function or workload."""
    engine: EngineName = "auto"
    show_output: bool = False
    """Let the job's own output through, on standard error."""
    most_seconds: float | None = None
    """Give up after this long."""

    @property
    def this_rank(self) -> Ranks:
        """The rank that a child process acts as."""
        return Ranks(rank=self.rank if isinstance(self.rank, int) else 0, count=self.ranks)

    @property
    def choose_batches(self) -> bool:
        """Whether the script's data loader gives batches of typical and of great lengths."""
        return self.lengths == AUTO


DEFAULTS = PredictOptions()
FLAGS = {
    "num_steps": "--steps",
    "probes": "--no-probes",
    "most_seconds": "--timeout",
}
"""Options whose flag is not their name."""


def flag_of(name: str) -> str:
    """The flag of an option on the command line."""
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def given_options(options: PredictOptions) -> dict[str, object]:
    """The options that differ from their defaults."""
    values = {name: getattr(options, name) for name in options.__struct_fields__}
    return {name: value for name, value in values.items() if value != getattr(DEFAULTS, name)}
