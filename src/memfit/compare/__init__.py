"""A grid of optimizers and techniques, every cell predicted and measured."""
