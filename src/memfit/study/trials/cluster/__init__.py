"""Trials on a Dask cluster, and the jobs of a batch system (Slurm, PBS, LSF) that are its workers."""
