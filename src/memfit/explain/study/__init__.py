"""What drives memory over many trials."""
