"""What of torch is replaced while a job is traced; imports torch."""
