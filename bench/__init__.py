"""Benchmarks: comparison of cpuconv with other engines for Python programs, and the cost of a call."""
