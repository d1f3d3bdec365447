"""MANY RUNS: search spaces, NNI's files, tuners and assessors, trials, storage, cluster."""
