"""What was found, in SQLite."""
