"""Store of tuning results, in SQLite."""
