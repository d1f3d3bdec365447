"""Record -> what to draw. Pure."""
