"""Data sets: catalogue, cache, readers, feeds to a network."""
