"""Readers of problem lists."""
