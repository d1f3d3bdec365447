"""Studies of many runs: search spaces, NNI's files, tuners and assessors, trials, storage, cluster."""
