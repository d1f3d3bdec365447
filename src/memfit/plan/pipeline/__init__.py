"""Planners of pipelined training: where to cut a chain of layers over ranks, and in which order each rank works."""
