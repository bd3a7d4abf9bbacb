"""cpuconv as a workload of autotune."""
