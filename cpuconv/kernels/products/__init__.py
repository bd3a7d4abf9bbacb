"""Sums of products in register tiles: GEMM, what is made of it, and a vector times a matrix."""
