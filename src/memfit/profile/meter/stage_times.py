"""Start and end of each stage of a running step, and the moment its output's gradient is there.

Calls `tell(name)` at each boundary: the allocator's record, which turns names into marks, or a clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from memfit.apply.checkpoints import LiveStage
from memfit.model.call_sites import After, Before, watching
from memfit.model.step import tensors_of


@contextlib.contextmanager
def stage_hooks(
    live: Sequence[LiveStage], tell: Callable[[str], None], outputs: dict[int, list[tuple[int, int]]]
) -> Iterator[None]:
    """Tell when a stage starts and ends and when the gradient of its output is there; only in the first forward."""
    reported: set[str] = set()

    def once(name: str) -> None:
        if name not in reported:
            reported.add(name)
            tell(name)

    def ended(index: int, output: object) -> None:
        if index in outputs:
            return
        tensors = tensors_of(output)
        outputs[index] = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors]
        once(f"end {index}")
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(lambda _: tell(f"gradient {index}"))

    def started(index: int, given: object) -> None:
        once(f"start {index}")
        if index and live[index - 1].is_glue:  # what glue makes is what the next stage is given
            ended(index - 1, tensors_of(given)[:1])

    places: list[tuple[torch.nn.Module, Before | None, After | None]] = []
    for index, stage in enumerate(live):
        if stage.modules:
            places.append((stage.modules[0], lambda args, kwargs, i=index: started(i, (args, kwargs)), None))
            places.append((stage.modules[-1], None, lambda output, i=index: ended(i, output)))
    with watching(places):
        yield


# ---- a clock ---------------------------------------------------------------------------------------------------


def seconds_now() -> float:
    """The time by which parts of a step are compared.

    With one thread of torch that of the processor: other programs of the machine count little. With several the wall's.
    """
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def clock_into(moments: dict[str, float], device: torch.device) -> Callable[[str], None]:
    """A function that notes when it was called with a name; the last time counts."""

    def tell(name: str) -> None:
        _wait_for(device)
        moments[name] = seconds_now() if device.type == "cpu" else time.perf_counter()

    return tell


class ClockRecord:
    """Moments of a clock in the form of a record: each moment is one event."""

    def __init__(self, moments: dict[str, float]) -> None:
        self.events = sorted(moments.values())
        self._at = {name: self.events.index(moment) for name, moment in moments.items()}

    def at(self, name: str) -> int | None:
        """The number of a moment."""
        return self._at.get(name)

    def seconds(self, window: tuple[int, int]) -> float:
        """Seconds between two numbered moments."""
        return max(0.0, self.events[window[1]] - self.events[window[0]])


def _wait_for(device: torch.device) -> None:
    """Let an accelerator finish what it was given (never run on the machine this was written on)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
