"""Allocator events of one step -> bytes per stage."""
