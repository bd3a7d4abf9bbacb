"""Memory that kernels work in, and files that are mapped into memory."""
