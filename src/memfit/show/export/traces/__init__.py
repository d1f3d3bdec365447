"""Timelines for trace viewers: Chrome and Perfetto, torch.profiler, the memory viewer of PyTorch."""
