"""Described machines: their instruction sets, caches and rates, for tests of the choices made on each.

The candidate that a model prefers depends on the machine. So tests of choices run on all of these machines, and not on
the one that the tests happen to run on.
"""

from __future__ import annotations

from dataclasses import replace

from bench.simulated_machine import simulating as simulating
from cpuconv.isa import table
from cpuconv.kernels.binding.machine import Machine

AVX512, AVX2, SSE, NEON = table.TABLE
ZEN4, SAPPHIRE = (replace(AVX512, **table.MICROARCHITECTURES["avx512", name]) for name in ("znver4", "sapphirerapids"))
KIB, MIB = 1 << 10, 1 << 20

MACHINES: dict[str, Machine] = {
    "zen4": Machine(ZEN4, 32 * KIB, 1 * MIB, 32 * MIB),
    "zen5": Machine(replace(AVX512, frequency=4.1e9, l2_rate=57, l3_rate=22, dram_rate=9), 48 * KIB, 1 * MIB, 32 * MIB),
    "skylake-avx512": Machine(replace(AVX512, l3_rate=6), 32 * KIB, 1 * MIB, 24 * MIB),
    "xeon-amx": Machine(replace(SAPPHIRE, frequency=2.6e9, l2_rate=48), 48 * KIB, 2 * MIB, 480 * MIB),
    "haswell": Machine(replace(AVX2, frequency=3.4e9), 32 * KIB, 256 * KIB, 8 * MIB),
    "cortex-a76": Machine(replace(NEON, l2_rate=16), 64 * KIB, 512 * KIB, 4 * MIB),
    "sse": Machine(SSE, 32 * KIB, 256 * KIB, 3 * MIB),
    "generic": Machine(table.GENERIC, 32 * KIB, 512 * KIB, 8 * MIB),
}
