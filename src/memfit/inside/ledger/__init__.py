"""In the user's process: which tensors make up the peak; standard library, and torch where the job has it."""
