"""What a predicted script may read, write, import and start, without touching the user's files; for both engines."""
