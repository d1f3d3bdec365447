"""What a fake tensor answers when its value is read; imports torch."""
