"""Kernels of what networks compute beside convolutions: emitters and drivers, with the steps that call them."""
