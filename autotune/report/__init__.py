"""What was found, shown: tables, pages, explanations."""
