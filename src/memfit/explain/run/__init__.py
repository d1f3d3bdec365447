"""One run, or the difference of two."""
