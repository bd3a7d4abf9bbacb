"""Expressions of the elements at one place, as kernels of their own and as epilogues of others."""
