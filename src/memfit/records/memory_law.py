"""Law of memory fitted to the trials of a study: bytes = base + b * parameters + c * batch * activations."""

from __future__ import annotations

import msgspec


class MemoryLaw(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A law that holds; a term that did not vary, or is not surely there, is None."""

    base_bytes: float
    bytes_per_parameter: float | None = None
    bytes_per_activation: float | None = None
    """For each activation of each example of a batch."""

    def bytes_of(self, num_parameters: float, num_batch_activations: float) -> float:
        """What the law says of a network; `num_batch_activations` are those of all examples of a batch."""
        per_parameter, per_activation = self.bytes_per_parameter or 0.0, self.bytes_per_activation or 0.0
        return self.base_bytes + per_parameter * num_parameters + per_activation * num_batch_activations
