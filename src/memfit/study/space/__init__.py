"""What can be drawn, and how search spaces are written."""
