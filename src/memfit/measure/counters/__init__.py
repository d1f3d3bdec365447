"""One kernel or driver source per file; standard library only."""
