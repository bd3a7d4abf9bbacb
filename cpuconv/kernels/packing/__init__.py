"""Weights in the order in which kernels read them."""
