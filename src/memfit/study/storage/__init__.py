"""Facts that are only added: SQLite, PostgreSQL, and what survives their failure."""
