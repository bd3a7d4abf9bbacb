"""Kernels that call kernels: side by side, or with the time taken."""
