"""Benchmarks of networks with open sizes: inputs that all differ in size, the engines, and their processes."""
