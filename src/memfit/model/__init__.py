"""The user's live model: one training step, the module calls it makes, the stages they form; everything is put back."""

from memfit.torch_support import require_supported_torch

require_supported_torch("fitting")  # fit, profile and apply all load this room
