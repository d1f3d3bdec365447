"""Turns records into findings: where memory went in one run, and what drives it over many."""
