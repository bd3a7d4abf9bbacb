"""The measured roofs, and the loops that measure them."""

from __future__ import annotations

import re
import subprocess

import pytest

from autotune.interpreter import python
from autotune.machine.device import fingerprint
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.isa import current
from cpuconv.kernels.streams.probe import fma_peak, read_sum, write_all
from cpuconv.runtime.threads import maximum_threads
from cpuconv.tuning.probes import fma_tile, level_sizes, probe, read_tile
from support.asm import count_fma, hot_loop, loops, needs_fma, vector_spills

MEGABYTE = 1 << 20


@pytest.mark.parametrize("threads", sorted({1, maximum_threads()}))
def test_probe(threads):
    found = dict(probe(threads))
    assert set(found) == {"float32_gflops", "store_gbs", *level_sizes(dict(fingerprint().caches), threads)}
    assert "dram_gbs" in found
    assert all(value > 0 for value in found.values())


def test_threads_are_checked():
    with pytest.raises(ArgumentError, match="'threads'"):
        probe(0)
    with pytest.raises(ArgumentTypeError, match="'threads'"):
        probe("2")


def test_level_sizes():
    caches = {"L1d": 32 << 10, "L2": MEGABYTE, "L3": 36 * MEGABYTE}
    assert level_sizes(caches, 2) == {
        "l1_gbs": 16 << 10,
        "l2_gbs": MEGABYTE // 2,
        "l3_gbs": 9 * MEGABYTE,
        "dram_gbs": 72 * MEGABYTE,
    }
    assert level_sizes(caches, 8)["l3_gbs"] == 3 * MEGABYTE  # well above L2 rather than half of L3
    assert "l3_gbs" not in level_sizes(caches, 16)  # no room for that


def test_level_sizes_without_caches():
    assert level_sizes({"L1d": 64 << 10, "L2": 4 * MEGABYTE}, 1) == {
        "l1_gbs": 32 << 10,
        "l2_gbs": 2 * MEGABYTE,
        "dram_gbs": 64 * MEGABYTE,
    }
    assert level_sizes({}, 1) == {"dram_gbs": 64 * MEGABYTE}
    assert level_sizes({"L3": 1 << 30}, 1)["dram_gbs"] == 512 * MEGABYTE


@needs_fma
def test_fma_loop_is_as_emitted():
    tile = fma_tile(current())
    body = hot_loop(fma_peak.assembly(tile))
    assert count_fma(body) == tile.chains * tile.unroll
    assert len(body) <= count_fma(body) + 4
    assert not vector_spills(body)


def test_reading_loop_is_as_emitted():
    tile = read_tile(current())
    adds = tile.chains * tile.unroll
    bodies = [body for body in loops(read_sum.assembly(tile)) if sum("add" in line for line in body) >= adds]
    assert len(bodies) == 1
    assert sum(line.startswith(("vaddps", "addps", "fadd")) for line in bodies[0]) == adds
    assert not vector_spills(bodies[0])


def test_writing_loop_is_as_emitted():
    tile = read_tile(current())
    stores = tile.chains * tile.unroll
    bodies = [body for body in loops(write_all.assembly(tile)) if sum(map(stored, body)) >= stores]
    assert len(bodies) == 1
    assert sum(map(stored, bodies[0])) == stores
    assert not any("call" in line for line in bodies[0])  # such as of memset


def stored(line: str) -> int:
    """Vectors that an instruction stores."""
    if line.startswith("stp q"):
        return 2
    return bool(re.match(r"vmovups\s+%[xyz]mm\d+, |movups\s+%xmm\d+, |str\s+q", line))


def test_import_compiles_nothing():
    code = "from cpuconv.tuning import probes; from cpuconv.runtime.code.cache import Statistics as s; "
    code += "print(s.compiled, s.loaded)"
    done = subprocess.run(python("-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]
