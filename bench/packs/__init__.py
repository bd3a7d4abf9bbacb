"""Kernel packs are made here: what is compiled for every class of CPUs, and how (`python -m bench.packs --help`)."""
