"""PyTorch's CUDA caching allocator, event by event. Pure."""
