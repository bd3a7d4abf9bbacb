"""Object files become functions in memory."""
