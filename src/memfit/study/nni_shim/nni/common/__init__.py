"""The parts of `nni.common` that trials and tuners import."""

from ..serializer import dump, load, trace

__all__ = ["dump", "load", "trace"]
