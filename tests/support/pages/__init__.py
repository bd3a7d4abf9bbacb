"""What every HTML page must be, and a browser that shows it."""
