"""The measured roofs, and the loops that measure them."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest

from autotune.machine.device import fingerprint
from baselib.interpreter import python
from bench.mca.assembly import count_fma, hot_loop, loops, vector_spills
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.isa import current
from cpuconv.isa.dots import X86
from cpuconv.isa.features import has_feature
from cpuconv.kernels.streams.peaks import matrix_peak, product_peak
from cpuconv.kernels.streams.probe import fma_peak, read_sum, write_all
from cpuconv.memory.aligned import aligned
from cpuconv.runtime import Program
from cpuconv.runtime.threads import maximum_threads
from cpuconv.tuning.probes import (
    MEASURED,
    fma_tile,
    level_sizes,
    matrix_tile,
    measured_matrices,
    measured_products,
    probe,
    read_tile,
)
from cpuconv.tuning.workload import workload
from support.asm import needs_fma

MEGABYTE = 1 << 20
PAIRS = r"({vex} )?v?p(maddwd|dpwssd)\b|s?mull?\b|mla\b"


@pytest.mark.parametrize("threads", sorted({1, maximum_threads()}))
def test_probe(threads):
    found = dict(probe(threads))
    names = *measured_products(current()), *(dot.name for dot in measured_matrices())
    products = {f"{name}_gflops" for name in names}
    types = {f"{dtype}_gflops" for dtype in workload.dtypes}
    assert {"float32_gflops", "bfloat16_gflops", "float16_gflops", "int8_gflops", "int16_gflops"} == types
    levels = set(level_sizes(dict(fingerprint().caches), threads))
    assert set(found) == {"store_gbs", *types, *products, *levels}
    assert "dram_gbs" in found
    assert all(value > 0 for value in found.values())
    assert found["bfloat16_gflops"] >= found["float32_gflops"]
    assert max(found[name] for name in products | types) == max(found[name] for name in types)


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


def test_every_product_of_the_instruction_set_is_measured():
    found = measured_products(current())
    dots = {dot.name for dot in current().dots if dot.x in MEASURED and dot.sum.bytes == 4 and has_feature(dot.feature)}
    assert found.keys() >= {"pairs"} and found.keys() - {"pairs"} <= {dot.name for dot in current().dots}
    assert current().dots[0].machine != X86 or found.keys() >= dots
    assert {element for elements, _ in found.values() for element in elements} <= set(MEASURED)


@pytest.mark.parametrize("name", measured_products(current()))
def test_loops_of_products_are_as_emitted(name):
    tile = measured_products(current())[name][1]
    body = [line for line in hot_loop(product_peak.assembly(tile)) if not line.startswith(("#", "//"))]
    assert not vector_spills(body)
    if name == "pairs":  # made of two instructions, or of one where LLVM finds that
        assert sum(bool(re.match(PAIRS, line)) for line in body) >= tile.chains
    else:
        assert sum(bool(re.match(rf"({{vex}} )?{name}\b", line)) for line in body) == tile.chains
        each = 4 if name == "vpmaddubsw" else 1  # what is flipped, the product, sums of pairs, and those of words
        assert len(body) <= each * tile.chains + 4


@pytest.mark.parametrize("dot", measured_matrices(), ids=lambda dot: dot.name)
def test_loops_of_tiles_are_as_emitted(dot):
    tile = matrix_tile(current(), dot)
    body = max(loops(matrix_peak.assembly(tile)), key=len)
    assert sum(line.startswith(dot.name) for line in body) == 4 * tile.unroll and len(body) <= 4 * tile.unroll + 4
    assert tile.macs == 4 * tile.unroll * 16 * 16 * 64 // dot.x.bytes


def test_chains_of_a_product_add_it_up():
    tile = measured_products(current())["pairs"][1]
    seeds, sums = np.zeros((tile.chains + 2, tile.lanes), np.int32), aligned((1, 1024))
    seeds[-2], seeds[-1] = 2 << 16 | 3, 5 << 16 | 7  # pairs of int16
    words = {"turns": 4, "seeds": seeds.ctypes.data, "y": sums.ctypes.data, "y_step": 4096}
    Program([(product_peak.entry(tile), product_peak.pack(words), 1)], 1).run()
    assert (sums.view(np.int32)[0, : tile.lanes] == 4 * tile.chains * (2 * 5 + 3 * 7)).all()
