"""Other programs' formats."""
