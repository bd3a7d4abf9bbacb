"""Builder of kernel packs: kernels to compile for every class of CPUs (`python -m bench.packs --help`)."""
