"""What each instruction set offers, as data, and which one code is generated for.

Sources: Intel's and AMD's optimisation guides. The most pixels of a tile were read from the machine code for AVX-512
and AVX2 (a test repeats it), those of complex tiles for NEON too (Cortex-A76). The other figures of NEON come from
measurements of an earlier emitter; those of SSE are AVX2's.
"""

from __future__ import annotations

import functools
from dataclasses import field, replace
from typing import Any

from autotune.data_classes import dataclass
from autotune.machine.device import microarchitecture
from cpuconv.elements import Element
from cpuconv.isa import dots
from cpuconv.isa.dots import Dot
from cpuconv.runtime.target import target, target_machine


@dataclass(frozen=True)
class Isa:
    """One instruction set."""

    name: str
    lanes: int  # 32-bit lanes of a vector: floats, or sums of products
    registers: int  # vector registers
    broadcast_operand: bool  # a broadcast scalar can be an operand of an FMA, without a register
    pixels: tuple[int, ...]  # most pixels of a GEMM tile with 1, 2, … weight vectors that LLVM keeps in registers
    pairs: tuple[int, ...]  # the same of a complex tile with 1, 2, … pairs of weight vectors
    dots: tuple[Dot, ...]  # instructions that multiply and add, the FMA of float32 first
    load_rate: float  # vector loads a cycle
    store_cost: float  # cycles of a vector store
    probe: str  # a register name that only this set's assembly of a 16-lane FMA shows
    feature: str = ""  # LLVM's name of what CPUs of this set have, and those of the rows before it too
    broadcast_rate: float = 2  # broadcast scalars loaded a cycle
    efficiency: tuple[float, ...] = (0.86, 0.97, 1.0, 1.0)  # of GEMM tiles with 1, 2, … weight vectors, as measured
    latency: float = 4  # cycles from a sum to the next one
    memory_operand: bool = True  # an operand of an FMA can be read from memory, without a register
    frequency: float = 2.5e9  # cycles a second
    l2_rate: float = 32  # bytes a cycle of one core
    l3_rate: float = 8
    dram_rate: float = 4
    single: tuple[float, ...] = (
        1.0,
        1.0,
        1.0,
        1.0,
    )  # of those, what weights reach that a single pixel uses, by vectors
    additions: float = 2  # of vectors of integers a cycle
    uneven: float = 0.0  # share of its time that a tile takes more for each sum more or less than half of the registers
    closed: bool = False  # tiles of the closed set alone (`kernels/products/tiling.py`)
    fma_rate: float = field(init=False)  # vector FMAs of float32 a cycle

    def __post_init__(self) -> None:
        object.__setattr__(self, "fma_rate", self.dots[0].rate)

    def __hash__(self) -> int:
        """The hash of the name: results about tiles are remembered by instruction set."""
        return hash(self.name)

    def block(self, element: Element) -> int:
        """Channels of a block of such elements: a pixel of a block is one vector."""
        return 4 * self.lanes // element.bytes


# With 16 registers a tile has 8 to 12 sums, and 8 are what hides the latency of FMAs: those with as many or one more
# stall when a load is late. Fitted to 1,900 timed candidates of 90 problems on AVX2 (Zen 4).
_FEW_SUMS: Any = {"efficiency": (0.95, 1.0, 0.95, 0.95), "latency": 4.4}
_NARROW: Any = {"additions": 3}  # x86 adds integers on three ports, or four; with 512 bits on two

TABLE: tuple[Isa, ...] = (
    Isa("avx512", 16, 32, True, (30, 14, 9, 6), (13, 6, 3, 2), dots.AVX512, 2, 1, "zmm", "avx512f"),
    Isa("avx2", 8, 16, False, (8, 6, 3, 2), (6, 2, 1), dots.AVX2, 2, 1, "ymm", "avx2", **_NARROW, **_FEW_SUMS),
    Isa("sse", 4, 16, False, (8, 6, 3, 2), (6, 2, 1), dots.SSE, 2, 1, "xmm", **_NARROW),
    Isa("neon", 4, 32, False, (16, 8, 5, 4), (8, 5, 3, 2), dots.NEON, 2, 1, "v0.4s", "neon", memory_operand=False),
)
GENERIC = Isa("generic", 4, 16, False, (8, 6, 3, 2), (6, 2, 1), dots.GENERIC, 1, 1, "")

WITH_AMX = ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids")
MICROARCHITECTURES: dict[tuple[str, str], dict[str, Any]] = {  # where a CPU differs from its instruction set's row
    ("avx2", "znver4"): {"frequency": 3.5e9, "l3_rate": 20, "dram_rate": 8},  # whose hypervisor hides AVX-512
    ("avx512", "znver4"): {
        "dots": dots.at_rate(dots.AVX512, 1),
        "load_rate": 1,
        "store_cost": 2,
        "efficiency": (1.0, 1.0, 1.0, 1.0),
        "frequency": 3.65e9,
        "l3_rate": 20,
        "dram_rate": 8,
    },
    ("avx512", "znver5"): {"dots": dots.at_rate(dots.AVX512, 2)},
    **dict.fromkeys(
        [("avx512", name) for name in WITH_AMX],
        {
            "dots": dots.at_rate(dots.AVX512, 0.5, "vdpbf16ps"),
            "l3_rate": 5,
            "single": (0.95, 1.0, 0.9, 0.82),
        },
    ),
}

_PROBE = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
define void @probe(<16 x float>* %p, <16 x float>* %q) {
  %a = load <16 x float>, <16 x float>* %p
  %b = load <16 x float>, <16 x float>* %q
  %c = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %a)
  store <16 x float> %c, <16 x float>* %p
  ret void
}
"""


@functools.lru_cache(maxsize=1)
def current() -> Isa:
    """The widest instruction set of the CPU that code is generated for."""
    return _found()


def _found() -> Isa:
    _, cpu, features = target()
    return of(cpu, features)


def of(cpu: str, features: str) -> Isa:
    """The widest instruction set of a CPU that LLVM names so, with those features; where none tells, of the target."""
    isa = stated(features) or probed()
    return replace(isa, **MICROARCHITECTURES.get((isa.name, microarchitecture(cpu, features)), {}))


def stated(features: str) -> Isa | None:
    """The widest set among a target's features, as LLVM lists them; None where a CPU's name must tell."""
    there = features.split(",")
    return next((isa for isa in TABLE if f"+{isa.feature}" in there), None)


def probed() -> Isa:
    """The set whose registers LLVM uses for the target: to generate code takes 10 MB of LLVM's in memory."""
    import llvmlite.binding as llvm

    assembly = target_machine().emit_assembly(llvm.parse_assembly(_PROBE))
    return next((isa for isa in TABLE if isa.probe in assembly), GENERIC)
