"""Calibration samples from memory or from files."""
