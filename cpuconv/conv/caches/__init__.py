"""Caches that calls fill for later calls, with limited size."""
