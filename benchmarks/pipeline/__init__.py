"""Benchmarks of pipelines and of every rank of a distributed training."""
