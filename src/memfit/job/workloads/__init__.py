"""Built-in trainings; imports torch."""
