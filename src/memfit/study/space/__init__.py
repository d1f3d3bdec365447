"""Search spaces: what can be drawn, and how they are written."""
