"""The table of instruction sets with their costs, and the instruction set for which code is generated.

Sources: Intel's, AMD's and Arm's optimisation guides. Maximum tile pixels were read from the machine code (tests repeat
it for AVX-512 and AVX2, `bench.mca` for NEON), those of complex tiles for NEON on Cortex-A76. The other figures of SSE
are AVX2's.
"""

from __future__ import annotations

import functools
from dataclasses import field, replace
from typing import Any

from autotune.machine.device import microarchitecture
from baselib.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.isa import dots
from cpuconv.isa.dots import Dot
from cpuconv.runtime.in_order.pipeline import IN_ORDER
from cpuconv.runtime.target import target, target_machine


@dataclass(frozen=True)
class Isa:
    """One instruction set."""

    name: str
    lanes: int  # 32-bit lanes per vector: float32, or sums of dot products
    registers: int  # vector registers
    broadcast_operand: bool  # a broadcast scalar can be an operand of an FMA, without a register
    pixels: tuple[int, ...]  # maximum pixels of a GEMM tile with 1, 2, … weight vectors that LLVM keeps in registers
    pairs: tuple[int, ...]  # maximum pixels of a complex tile with 1, 2, … pairs of weight vectors
    dots: tuple[Dot, ...]  # multiply-add instructions, the FMA of float32 first
    load_rate: float  # vector loads per cycle
    store_cost: float  # cycles per vector store
    probe: str  # a register name that occurs in this set's assembly of a 16-lane FMA, and in no other's
    feature: str = ""  # LLVM's name of a feature that CPUs of this set and of wider sets have
    broadcast_rate: float = 2  # scalar broadcast loads per cycle
    efficiency: tuple[float, ...] = (0.86, 0.97, 1.0, 1.0)  # measured efficiency of tiles with 1, 2, … weight vectors
    latency: float = 4  # cycles between dependent FMAs, the latency of an accumulation
    memory_operand: bool = True  # an operand of an FMA can be in memory, without a register
    prefetch_step: int = 1  # adjacent vectors per prefetch of a transform
    in_order: bool = False  # instructions issue in their order, so that loads are not hidden behind FMAs
    scalars_per_load: int = 1  # scalars of one load from which FMAs take single elements as operands
    frequency: float = 2.5e9  # cycles per second
    l2_rate: float = 32  # bytes per cycle from L2 to one core
    l3_rate: float = 8  # bytes per cycle from L3 to one core
    dram_rate: float = 4  # bytes per cycle from memory to one core
    single: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)  # factor on `efficiency` for one pixel, by weight vectors
    additions: float = 2  # integer vector additions per cycle
    uneven: float = 0.0  # extra share of a tile's time per accumulator more or less than half of the registers
    sum_block: int = 0  # scalars whose sums are added to wider ones, if they are not all; 0: sums are never added
    closed: bool = False  # uses only tiles of the closed set (`kernels/products/tiling.py`)
    fma_rate: float = field(init=False)  # float32 vector FMAs per cycle

    def __post_init__(self) -> None:
        object.__setattr__(self, "fma_rate", self.dots[0].rate)

    def __hash__(self) -> int:
        """Hash the name, so that memoised results about tiles are keyed by instruction set."""
        return hash(self.name)

    def block(self, element: Element) -> int:
        """Channels per block of an element type: one pixel of a block is one vector."""
        return 4 * self.lanes // element.part_bytes


# With 16 registers a tile has 8 to 12 accumulators, and 8 hide the latency of FMAs: tiles with 8 or 9 stall when a load
# is late. Fitted to 1,900 timed candidates of 90 problems on AVX2 (Zen 4).
_FEW_SUMS: Any = {"efficiency": (0.95, 1.0, 0.95, 0.95), "latency": 4.4}
_NARROW: Any = {"additions": 3}  # x86 adds integers on three or four ports; with 512 bits on two

_ARM: Any = {
    "memory_operand": False,
    "prefetch_step": 4,  # a cache line
    "scalars_per_load": 4,
    "efficiency": (1.0, 1.0, 1.0, 1.0),
}

TABLE: tuple[Isa, ...] = (
    Isa("avx512", 16, 32, True, (30, 14, 9, 6), (13, 6, 3, 2), dots.AVX512, 2, 1, "zmm", "avx512f"),
    Isa("avx2", 8, 16, False, (8, 6, 3, 2), (6, 2, 1), dots.AVX2, 2, 1, "ymm", "avx2", **_NARROW, **_FEW_SUMS),
    Isa("sse", 4, 16, False, (8, 6, 3, 2), (6, 2, 1), dots.SSE, 2, 1, "xmm", **_NARROW),
    Isa("neon", 4, 32, False, (15, 10, 7, 6, 5, 4), (8, 5, 3, 2), dots.NEON, 2, 1, "v0.4s", "neon", **_ARM),
)
GENERIC = Isa("generic", 4, 16, False, (8, 6, 3, 2), (6, 2, 1), dots.GENERIC, 1, 1, "")

_IN_ORDER: Any = {  # a vector is two loads of eight bytes, each of which issues together with an FMA
    "in_order": True,
    "dots": dots.at_rate(dots.NEON, 1),
    "pixels": (16, 11, 7, 5),
    "load_rate": 0.5,
    "broadcast_rate": 1,
    "scalars_per_load": 2,
    "efficiency": (0.89, 0.92, 0.92, 0.93),
}
WIDE = (  # four vector units
    *("cortex-x1", "cortex-x2", "cortex-x3", "cortex-x4", "cortex-x925", "neoverse-v1", "neoverse-v2", "neoverse-v3"),
    *("apple-m1", "apple-m2", "apple-m3", "apple-m4"),
)
WITH_AMX = ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids")
MICROARCHITECTURES: dict[tuple[str, str], dict[str, Any]] = {  # differences between a CPU and its instruction set's row
    ("avx2", "znver4"): {"frequency": 3.5e9, "l3_rate": 20, "dram_rate": 8},  # a Zen 4 whose hypervisor hides AVX-512
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
    **dict.fromkeys([("neon", name) for name in IN_ORDER], _IN_ORDER),
    ("neon", "cortex-a72"): {"load_rate": 1, "broadcast_rate": 1},
    **dict.fromkeys([("neon", name) for name in WIDE], {"dots": dots.at_rate(dots.NEON, 4), "load_rate": 3}),
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
    """The widest instruction set of the CPU for which code is generated."""
    return _found()


def _found() -> Isa:
    _, cpu, features = target()
    return isa_of(cpu, features)


def isa_of(cpu: str, features: str) -> Isa:
    """The widest instruction set of a CPU, by LLVM's name and features; of the target if the features list none."""
    isa = isa_from_features(features) or isa_from_assembly()
    return replace(isa, **MICROARCHITECTURES.get((isa.name, microarchitecture(cpu, features)), {}))


def isa_from_features(features: str) -> Isa | None:
    """The widest instruction set among a target's features, as LLVM lists them; None if none is among them."""
    there = features.split(",")
    return next((isa for isa in TABLE if f"+{isa.feature}" in there), None)


def isa_from_assembly() -> Isa:
    """The instruction set whose registers LLVM uses for the target; generating this code takes 10 MB of memory."""
    import llvmlite.binding as llvm

    assembly = target_machine().emit_assembly(llvm.parse_assembly(_PROBE))
    return next((isa for isa in TABLE if isa.probe in assembly), GENERIC)
