"""Probe of the scratch memory of CPU kernels by a real run of one operator; imports torch."""
