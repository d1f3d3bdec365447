"""Observation of storages: operator, phase, module and line of each; imports torch; for both engines."""
