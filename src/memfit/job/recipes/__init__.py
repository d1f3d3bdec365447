"""Optimizers and memory techniques that are put on a training from outside, and the step that they make."""
