"""Reports of tuning results: tables, pages, explanations."""
