"""Kernels: emitters and drivers, a room for each kind of thing that they compute, with the steps that call them."""
