"""Planners that move bytes, alone or beside recomputing."""
