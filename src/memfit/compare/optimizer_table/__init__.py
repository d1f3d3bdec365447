"""Bytes per parameter of every optimizer: its names, a marked training, and the processes that run it."""
