"""What CPU kernels allocate inside, asked of a real run of one operator; imports torch."""
