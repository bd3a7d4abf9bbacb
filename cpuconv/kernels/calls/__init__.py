"""Kernels that call other kernels: in parallel, or timed."""
