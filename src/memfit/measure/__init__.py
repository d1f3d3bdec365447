"""Runs a program, or attaches to one, samples its memory and leaves a run folder."""
