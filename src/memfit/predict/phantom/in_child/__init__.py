"""Code beside the user's on the phantom GPU; imports torch."""
