"""Convolutions by GEMM tiles: how the pixels that a tile reads come to lie side by side, and the drivers."""
