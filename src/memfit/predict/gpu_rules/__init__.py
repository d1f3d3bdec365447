"""Bytes that GPU kernels and libraries take beside their results. Pure."""
