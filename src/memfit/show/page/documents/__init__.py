"""Documents: what the page gets of each kind of record, as plain data."""
