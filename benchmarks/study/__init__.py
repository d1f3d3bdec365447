"""Benchmarks of studies: what they cost, and what the memory constraint saves."""
