"""Sums of products in register tiles: GEMM, products of two matrices, and a vector times a matrix."""
