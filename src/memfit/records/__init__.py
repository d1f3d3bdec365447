"""Frozen data that crosses rooms and goes to disk; reads nothing, decides nothing."""
