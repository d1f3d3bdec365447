"""Benchmarks of comparisons: tables of the docs that are generated."""
