"""A job in a child process: request, reply, progress, and how it ends; for both engines."""
