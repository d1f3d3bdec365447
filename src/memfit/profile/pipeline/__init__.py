"""Stages of a pipeline: chains and graphs of live models, and the buffers of transfers."""
