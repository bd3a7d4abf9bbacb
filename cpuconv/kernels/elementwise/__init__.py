"""Elementwise expressions, as kernels of their own and as epilogues of other kernels."""
