"""Loaders of object files: they place functions in memory."""
