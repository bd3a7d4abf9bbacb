"""Symbolic sizes: numbers with a record of their computation, so that results for some sizes serve others."""
