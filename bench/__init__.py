"""Benchmarks: cpuconv beside the engines that Python programs use today, and the cost of a call."""
