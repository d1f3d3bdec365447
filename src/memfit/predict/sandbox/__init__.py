"""Sandbox of a predicted script: files, imports and processes, without touching the user's; for both engines."""
