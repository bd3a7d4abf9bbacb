"""Memory that kernels work in."""
