"""PUBLISHED RESULTS: run again, published beside ours, every statement of the sources with evidence and a verdict."""
