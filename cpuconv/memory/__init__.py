"""Memory of kernels, and memory-mapped files."""
