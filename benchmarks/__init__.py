"""Benchmarks of memfit: what it costs (`overhead`), how right it is (`accuracy`). Run from the top of the checkout."""
