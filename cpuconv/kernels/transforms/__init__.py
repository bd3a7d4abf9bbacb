"""Convolution in a transformed domain: Winograd's and Fourier's transforms, and the driver of both."""
