"""Kernel packs: archives of machine code for classes of CPUs, shipped in the installed package."""
