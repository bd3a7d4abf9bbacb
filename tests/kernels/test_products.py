"""The instructions of products, in code for CPUs that have them, whichever CPU this is."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest

from bench.mca.assembly import blocks, vector_spills
from cpuconv.isa.table import MICROARCHITECTURES, TABLE
from cpuconv.kernels.emit.product import BY_NAME, as_seen
from cpuconv.kernels.products.tiling import cycles
from support.running import processes

LISTED = """
import sys
from cpuconv.isa import current
from cpuconv.kernels.emit.product import product_of
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.problem.types import Types

types, v = Types.parse(sys.argv[1]), int(sys.argv[2])
product, lanes = product_of(types, current()), current().lanes
tile = GemmTile(lanes, v, 1, 4, lanes, lanes, lanes, product=product.name, x=types.x, y=types.y)
print(product.name)
print(gemm_strip.assembly(tile))
"""
LISTED_FEW = """
import sys
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.problem.types import Types

types = Types.parse(sys.argv[1])
tile = GemmTile(8, 2, 1, 1, 8, 8, 8, product="vpmaddubsw_few", x=types.x, y=types.y)
print(gemm_strip.assembly(tile))
"""
OF_X86 = [
    ("haswell", "u8:s8:u8", "vpmaddubsw", "vpmaddubsw"),
    ("haswell", "s8:s8:s8", "vpmaddubsw_s8", "vpmaddubsw"),
    ("haswell", "u8:s16:u8", "pairs", "vpmaddwd"),
    ("skylake-avx512", "u8:s8:u8", "vpmaddubsw", "vpmaddubsw"),
    ("haswell", "bf16:bf16:bf16", "widened", "vfmadd"),
    ("haswell", "f16:f16:f16", "converted", "vfmadd"),
    ("alderlake", "u8:s8:u8", "vpdpbusd", "vpdpbusd"),
    ("arrowlake", "s8:s8:s8", "vpdpbssd", "vpdpbssd"),
    ("diamondrapids", "s8:s8:s8", "vpdpbssd", "vpdpbssd"),
    ("icelake-server", "s8:s8:s8", "vpdpbusd", "vpdpbusd"),
    ("znver4", "bf16:bf16:f32", "vdpbf16ps", "vdpbf16ps"),
]


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="these are CPUs of x86")
@pytest.mark.parametrize(("cpu", "types", "product", "instruction"), OF_X86)
def test_a_cpu_gets_its_own_instruction(cpu: str, types: str, product: str, instruction: str) -> None:
    """2 x 4 sums and as many words as lanes: one instruction each, or two of words in parts."""
    said = processes.run("-c", LISTED, types, "2", NUMBA_CPU_NAME=cpu).stdout
    chosen, _, code = said.partition("\n")
    lanes = 16 if cpu in ("icelake-server", "skylake-avx512", "znver4", "diamondrapids") else 8
    parts = BY_NAME[product].cuts
    assert chosen == product
    assert code.count(instruction) >= 2 * 4 * lanes * parts


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="these are CPUs of x86")
@pytest.mark.parametrize(
    ("cpu", "types"), [("haswell", "u8:s8:u8"), ("haswell", "s8:s8:s8"), ("skylake-avx512", "u8:s8:u8")]
)
def test_bytes_meet_weights_one_word_at_a_time_and_two(cpu: str, types: str) -> None:
    """Flips, products, sums of pairs and sums, each for every word; of two words at once, two sums in 16 bits for a sum
    of pairs. No sum waits in memory.
    """
    lanes = 16 if cpu == "skylake-avx512" else 8
    whole, half = 2 * 4 * lanes, 4 * lanes
    code = processes.run("-c", LISTED, types, "2", NUMBA_CPU_NAME=cpu).stdout
    bodies = [each for each in blocks(code) if sum(line.startswith("vpmaddubsw") for line in each) == whole]
    one, two = sorted(bodies, key=lambda body: sum(line.startswith("vpmaddwd") for line in body), reverse=True)
    names = "vpxor", "vpmaddubsw", "vpaddw", "vpmaddwd", "vpaddd"
    counted = [[sum(line.startswith(name) for line in body) for name in names] for body in (one, two)]
    signed = 4 * lanes if types.startswith("s8") else 0  # their highest bit is flipped before they meet weights
    assert counted == [[whole, whole, 0, whole, whole], [signed, whole, whole, half, half]]
    assert not [line for line in vector_spills([*one, *two]) if "%rsp" in line]


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="these are CPUs of x86")
@pytest.mark.parametrize("types", ["u8:s8:u8", "s8:s8:s8"])
def test_few_pixels_meet_weights_of_one_byte(types: str) -> None:
    """Magnitudes and signs are made of each word, which flips vectors of weights; and once more for what sums lack."""
    code = processes.run("-c", LISTED_FEW, types, NUMBA_CPU_NAME="haswell").stdout
    counted = [code.count(name) for name in ("vpmaddubsw", "vpabsb", "vpcmpgtb")]
    assert counted == [2 * 8 + 1, 8 + 1, 8 + 1]  # of two vectors of weights and eight words
    assert not [line for line in vector_spills(code.splitlines()) if "%rsp" in line]


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="these are CPUs of x86")
def test_a_pixel_of_bfloat16_that_meets_one_vector_of_weights_is_read_by_the_product() -> None:
    """A broadcast apart takes a third of the product's speed on a Zen 4."""
    code = processes.run("-c", LISTED, "bf16:bf16:f32", "1", NUMBA_CPU_NAME="znver4").stdout
    products = [line for line in code.splitlines()[1:] if "vdpbf16ps" in line]
    assert len(products) == 4 * 16
    assert all("{1to16}" in line for line in products)


def test_small_tiles_wait_for_their_own_products() -> None:
    """Cycles of a word, by the latency of sums; of tiles with as many sums as that, by the rate."""
    isa = replace(TABLE[0], **MICROARCHITECTURES["avx512", "znver4"])
    words = 10_000

    def each(name: str, pixels: int) -> float:
        return cycles(as_seen(isa, BY_NAME[name]), 1, pixels, words) / words

    assert each("vdpbf16ps", 4) - each("fma", 4) == pytest.approx(2)
    assert each("fma", 8) == each("vdpbf16ps", 8)
    assert each("pmaddwd", 1) < each("fma", 1)  # their sums are additions of integers
