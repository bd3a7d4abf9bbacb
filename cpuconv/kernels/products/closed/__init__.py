"""GEMM strips of the closed set: few enough to enumerate and ship; differences between problems are data."""
