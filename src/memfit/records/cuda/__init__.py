"""State of a CUDA allocator: segments and blocks, and the memory snapshot of PyTorch that they are recorded in."""
