"""Findings of a study in words."""
