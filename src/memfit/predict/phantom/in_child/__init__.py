"""What runs beside the user's code on the phantom GPU; imports torch."""
