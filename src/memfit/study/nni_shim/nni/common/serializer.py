"""`dump`, `load` and `trace` where NNI has them."""

from ..serializer import dump, load, trace

__all__ = ["dump", "load", "trace"]
