"""Number of CPU threads of the job's operators, on which what they take inside depends (convolutions, attention).

The figure is for the number that the job sets (`torch.set_num_threads`), that the user names (`--threads`), or that
OMP_NUM_THREADS or MKL_NUM_THREADS name. Where nothing does, it is for one thread, so that the same job has the same
figure on every machine; the number that torch takes on this one by itself is looked at as well, for the range. A
script that sets the variable before its own `import torch` needs help (torch is loaded already), and so does a forked
copy of a process, which keeps one thread for itself.
"""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from unittest.mock import patch

import torch

from memfit.records.prediction import Assumption
from memfit.units import format_bytes

VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""In the order of their weight (torch 2.13 with MKL)."""
BY_JOB = "set by the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """A number of threads, who chose it, and the other one that torch would take here."""

    count: int
    chosen_by: str
    here: int | None = None
    """What torch takes on this machine by itself, where nothing names a number and it is another one."""

    def assumption(self, peak_bytes: int, here_bytes: int | None) -> Assumption:
        """What a reader has to know: another number may give another peak."""
        text = f"operators have {_counted(self.count)} ({self.chosen_by})"
        if self.here is not None and here_bytes is not None:
            text += f"; with the {self.here} that torch takes on this machine by itself, as in a run without settings, "
            text += _difference(peak_bytes, here_bytes)
        elif self.here is not None:
            text += f"; torch takes {self.here} on this machine by itself, and what that adds was not looked at"
        if self.chosen_by != BY_JOB:
            text += "; --threads N for another number"
        return Assumption(kind="threads", text=text)


def _counted(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _difference(peak_bytes: int, here_bytes: int) -> str:
    """How the peak with the threads of this machine differs."""
    if here_bytes == peak_bytes:
        return "tensors peak at the same number of bytes"
    share = here_bytes / peak_bytes - 1
    return f"tensors peak at {format_bytes(here_bytes)} ({share:+.2%}), which is the end of their range"


@dataclass(slots=True)
class ThreadWatch:
    """The number of threads when a job begins, and the one it sets itself."""

    at_start: int = field(default_factory=torch.get_num_threads)
    named_by: str = field(default_factory=lambda: _variable(os.environ))
    set_by_job: int | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within, a call of `torch.set_num_threads` is noticed, also where it changes nothing."""
        original = torch.set_num_threads

        def set_num_threads(count: int) -> None:
            original(count)
            self.set_by_job = torch.get_num_threads()

        with patch.object(torch, "set_num_threads", set_num_threads):
            yield

    def threads(self, wanted: int | None, of_process: int | None, *, looks_here: bool) -> Threads:
        """The threads of the real run: `wanted` by the user (0 for those of this machine), `of_process` where the job
        is a callable of a process that goes on."""
        if self.set_by_job is not None:
            return Threads(count=self.set_by_job, chosen_by=BY_JOB)
        if wanted:
            return Threads(count=wanted, chosen_by="--threads")
        if of_process is not None:
            return Threads(count=of_process, chosen_by="as in the calling process")
        if self.named_by or wanted == 0:
            return Threads(count=self.at_start, chosen_by=self.named_by or "torch's choice on this machine")
        here = self.at_start if looks_here and self.at_start != 1 else None
        return Threads(count=1, chosen_by="nothing names a number", here=here)


def _variable(environment: Mapping[str, str]) -> str:
    """The variable that names a number, with it: 'OMP_NUM_THREADS=2'."""
    return next((f"{name}={environment[name]}" for name in VARIABLES if _number(environment.get(name))), "")


@contextlib.contextmanager
def variables_heeded() -> Iterator[None]:
    """Within, a variable that the script sets before it imports torch counts, as it would in a run of its own."""
    original: Callable[..., ModuleType] = builtins.__import__
    at_start = _chosen(os.environ)

    def importing(name: str, scope: Mapping[str, object] | None = None, *args: object, **kwargs: object) -> ModuleType:
        if name.partition(".")[0] == "torch" and not _is_inner(scope):
            builtins.__import__ = original
            chosen = _chosen(os.environ)
            if chosen is not None and chosen != at_start:
                torch.set_num_threads(_at_most_cores(chosen))
        return original(name, scope, *args, **kwargs)

    with patch.object(builtins, "__import__", importing):
        yield


def _at_most_cores(count: int) -> int:
    """MKL gives no more threads than there are cores to a variable; `torch.set_num_threads` gives any number."""
    return min(count, len(os.sched_getaffinity(0))) if torch.backends.mkl.is_available() else count


def _is_inner(scope: Mapping[str, object] | None) -> bool:
    """Whether torch or memfit itself imports something late."""
    return str((scope or {}).get("__name__", "")).partition(".")[0] in ("torch", "memfit")


def _chosen(environment: Mapping[str, str]) -> int | None:
    """The number of threads that the variables ask for; None where they do not."""
    return next((number for name in VARIABLES if (number := _number(environment.get(name)))), None)


def _number(text: str | None) -> int | None:
    """The first number of '4' or '4,2'; None where there is none."""
    first = (text or "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None
