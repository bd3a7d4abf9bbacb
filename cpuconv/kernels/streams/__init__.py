"""Kernels that stream through memory: fingerprints of arrays, and probes of the machine's peak rates."""
