"""Number of CPU threads of the job's operators, on which oneDNN's scratch memory depends.

The number is torch's own, so it follows the machine, OMP_NUM_THREADS, MKL_NUM_THREADS and `torch.set_num_threads`. Two
cases need help: a script that sets the variable before its own `import torch` (torch is loaded already), and a forked
copy of a process, which keeps one thread for itself.
"""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from unittest.mock import patch

import torch

from memfit.records.prediction import Assumption

VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""In the order of their weight (torch 2.13 with MKL)."""


@dataclass(frozen=True, slots=True)
class Threads:
    """A number of threads, and who chose it."""

    count: int
    chosen_by: str

    def assumption(self) -> Assumption:
        """What a reader has to know: another number may give another peak."""
        noun = "thread" if self.count == 1 else "threads"
        text = (
            f"operators have {self.count} {noun} ({self.chosen_by}), on which the scratch memory of convolutions "
            "depends; run memfit with OMP_NUM_THREADS=N if the training will have another number"
        )
        return Assumption(kind="threads", text=text)


def threads_now(count_before: int) -> Threads:
    """The number after a job has run that began with `count_before`."""
    count = torch.get_num_threads()
    if count != count_before:
        return Threads(count, "set by the job")
    variable = next((name for name in VARIABLES if os.environ.get(name)), None)
    return Threads(count, f"{variable}={os.environ[variable]}" if variable else "torch's default on this machine")


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
    for name in VARIABLES:
        first = environment.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            return int(first)
    return None
