"""Tuners: choosing the next point."""
