"""Micro-kernels: emitters of the innermost loops, parametric in tile and vector width."""
