"""Kernel packs: archives of machine code for classes of CPUs, a part of the installed package."""
