"""Timing of callables, to find the fastest."""
