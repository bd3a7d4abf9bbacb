"""Whole networks: read, specialised to the sizes of their inputs, and interpreted."""
