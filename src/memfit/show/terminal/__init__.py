"""Text for the terminal, one file per record."""
