"""Convolution in a transformed domain: Winograd's transforms, Fourier's, and the driver of both."""
