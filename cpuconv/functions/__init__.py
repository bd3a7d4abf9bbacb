"""Definitions of elementwise functions and element type conversions, independent of kernels."""
