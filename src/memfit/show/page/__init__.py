"""HTML: one self-contained file per record."""
