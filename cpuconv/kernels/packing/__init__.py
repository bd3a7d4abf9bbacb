"""Packed weights, in the order in which kernels read them."""
