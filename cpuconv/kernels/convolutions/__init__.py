"""Convolutions by GEMM tiles: packing of the pixels that a tile reads, and the drivers."""
