"""GPU kernels imitated on fake tensors; imports torch."""
