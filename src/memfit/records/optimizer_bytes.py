"""Memory of optimizers: bytes of state and of the step, by optimizer, shapes, device and source."""

from __future__ import annotations

from typing import Literal

import msgspec

OPTIMIZER_TABLE_FORMAT = "memfit-optimizer-bytes"
OPTIMIZER_TABLE_VERSION = 1
ShapesName = Literal["square", "deep", "tall", "sparse"]
"""square: 4 matrices of 512 x 512; deep: 8 of them; tall: 2048 x 128 and 128 x 2048; sparse: one table of 4096 x 128.
All but the last have biases and a head of 8 outputs."""
RunSource = Literal["measured", "predicted"]


class StepBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Live bytes of all tensors in one training step."""

    begin_bytes: int
    """Before the forward pass."""
    peak_bytes: int
    """The most in the whole step."""
    update_begin_bytes: int | None = None
    """After the backward pass; None where the update cannot be separated from it (closures, steps in the backward)."""
    update_peak_bytes: int | None = None
    """The most during the update."""
    end_bytes: int
    """With the gradients dropped: parameters, batch and what the optimizer keeps."""


class OptimizerRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some training steps with one optimizer, or the reason why there are none."""

    optimizer: str
    shapes: ShapesName
    device: str
    source: RunSource
    package: str = ""
    """'pytorch_optimizer 4.1.0'."""
    torch_version: str = ""
    num_parameters: int = 0
    largest_parameters: int = 0
    """Of the largest tensor."""
    parameter_bytes: int = 0
    base_bytes: int = 0
    """Parameters and batch, before the optimizer was made."""
    steps: tuple[StepBytes, ...] = ()
    notes: tuple[str, ...] = ()
    """What the prediction had to assume of the optimizer's values."""
    reason: str = ""
    """Why there are no steps."""

    @property
    def state_bytes(self) -> int:
        """What the optimizer keeps between the last steps."""
        return self.steps[-1].end_bytes - self.base_bytes

    @property
    def first_temporary_bytes(self) -> int | None:
        """What the first update takes beside parameters, gradients and the state that it leaves."""
        return self._temporary_bytes(self.steps[0])

    @property
    def temporary_bytes(self) -> int | None:
        """The same in the costliest of the later updates; None where the update is inside of the backward."""
        found = [self._temporary_bytes(step) for step in self.steps[1:]]
        known = [num_bytes for num_bytes in found if num_bytes is not None]
        return max(known, default=None)

    @property
    def first_peak_bytes(self) -> int:
        """The most in the first step."""
        return self.steps[0].peak_bytes

    @property
    def peak_bytes(self) -> int:
        """The most in the later steps."""
        return max(step.peak_bytes for step in self.steps[1:])

    def _temporary_bytes(self, step: StepBytes) -> int | None:
        if step.update_peak_bytes is None:
            return None
        return step.update_peak_bytes - self.base_bytes - self.parameter_bytes - (step.end_bytes - self.base_bytes)


class OptimizerTable(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of many optimizers, and those of a training without one."""

    format: str = msgspec.field(default_factory=lambda: OPTIMIZER_TABLE_FORMAT)
    format_version: int = msgspec.field(default_factory=lambda: OPTIMIZER_TABLE_VERSION)
    runs: tuple[OptimizerRun, ...]
    torch_version: str
    packages: tuple[str, ...]
    left_out: dict[str, str] = {}
    """Optimizer -> why it was not asked at all."""
    num_not_run: int = 0
    """Runs that belong to the table and were not made."""

    def run_of(self, optimizer: str, shapes: ShapesName, device: str, source: RunSource) -> OptimizerRun | None:
        """One run, where it was made."""
        key = (optimizer, shapes, device, source)
        return next((r for r in self.runs if (r.optimizer, r.shapes, r.device, r.source) == key), None)
