"""Patches of torch while a job is traced; imports torch."""
