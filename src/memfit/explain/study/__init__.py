"""Explanation of a study: what drives memory over many trials."""
