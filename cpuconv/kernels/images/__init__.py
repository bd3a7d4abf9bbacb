"""Kernels that resize pictures and write them as inputs of networks."""
