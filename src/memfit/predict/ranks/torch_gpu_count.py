"""Number of GPUs that a script sees (`device_count`): one for each rank, as on a machine that `torchrun` fills.

Libraries see the one that is there: a rank trains on its own GPU, which has the number 0.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch

from memfit.predict.observe.source_files import kind_of_file

Note = Callable[[str, str], None]


class GpuCount:
    """Answers the question, and remembers that it was asked."""

    def __init__(self, num_ranks: int, note: Note) -> None:
        self._num_ranks, self._note = num_ranks, note
        self._was_asked = False

    @property
    def hint(self) -> str:
        """What to try where a script ends without a step and may have wanted more GPUs; empty where it did not ask."""
        if not self._was_asked or self._num_ranks > 1:
            return ""
        return "it asked for the number of GPUs and got 1: --ranks 4 predicts the first of 4 ranks, a GPU for each"

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Within, the lines of the script see a GPU for each rank, if there is any."""
        with contextlib.ExitStack() as stack:
            for module in (torch.cuda, torch.accelerator):
                stack.enter_context(patch.object(module, "device_count", self._counting(module.device_count)))
            yield

    def _counting(self, count: Callable[[], int]) -> Callable[[], int]:
        def device_count() -> int:
            found = count()
            if not found or kind_of_file(sys._getframe(1).f_code.co_filename) != 0:
                return found
            if not self._was_asked and self._num_ranks > found:
                self._note("ranks", f"the script sees {self._num_ranks} GPUs, one for each rank (--ranks)")
            self._was_asked = True
            return max(found, self._num_ranks)

        return device_count
