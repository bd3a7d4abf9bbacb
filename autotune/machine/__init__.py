"""What this computer is and what it can reach."""
