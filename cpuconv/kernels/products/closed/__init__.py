"""GEMM strips of the closed set: few enough to be enumerated and shipped; what differs between problems is data."""
