"""Callers, threads and processes, and the folders in which they keep kernels."""
