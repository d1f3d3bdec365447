"""A model's chain of stages: bytes and seconds of each, measured or on fake tensors; for `fit` and `pipeline`."""
