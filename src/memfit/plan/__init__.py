"""Planners of recomputation and offloading: a chain of stages and a budget in, a plan out; no torch."""
