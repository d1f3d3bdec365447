"""The sampler process; standard library only."""
