"""The parts of `nni.runtime` that advisors import."""
