"""Which candidate runs a problem."""
