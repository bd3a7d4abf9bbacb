"""Static analysis of micro-kernels for Arm: share of the FMA bound, loads and spills, without a machine."""
