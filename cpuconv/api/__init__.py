"""The public calls: of one convolution, of a network, and about what the process remembers."""
