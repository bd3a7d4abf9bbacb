"""In what precision engines run whole networks: a row for each, which peers have it, and how they are asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.oracle import OUR_TOLERANCE
from bench.peers import OURS, OWN_F32

PEER_TOLERANCE = 1e-3  # of float32
ROUNDED = 0.5  # such an error, relative to the largest value, random weights may make of rounding: it tells of no fault
Options = Mapping[str, object]


@dataclass(frozen=True)
class Precision:
    """One way to run networks.

    Attributes
    ----------
    peers : Mapping[str, Options]
        Other engines that have it, and keyword arguments of their classes.
    ours : Options
        Keyword arguments of our own.
    own_float32 : bool
        Whether ours in float32 is timed beside it.
    quantized : bool
        Whether files of integers are run in place of the networks' own.
    tolerance, own_tolerance : float
        The largest errors, of peers and of ours, at which figures count.
    """

    peers: Mapping[str, Options]
    ours: Options = field(default_factory=dict)
    own_float32: bool = False
    quantized: bool = False
    tolerance: float = PEER_TOLERANCE
    own_tolerance: float = OUR_TOLERANCE

    def options(self) -> dict[str, Options]:
        """Keyword arguments of all engines, by key."""
        return {OURS: self.ours, **self.peers}

    def asked(self, peers: tuple[str, ...]) -> tuple[str, ...]:
        """Of those peers the ones that have it, with ours in float32 before them where it is wanted."""
        return (*([OWN_F32] if self.own_float32 else []), *(key for key in peers if key in self.peers))


TABLE: Mapping[str, Precision] = {
    "float32": Precision({"onnxruntime": {}, "openvino": {}, "mnn": {}, "torch": {}}),
    "bf16": Precision(
        {"openvino": {"precision": "bf16"}, "torch": {"precision": "bf16"}},
        {"precision": "bfloat16"},
        True,
        tolerance=ROUNDED,
        own_tolerance=ROUNDED,
    ),
    "int8": Precision({"onnxruntime": {}, "openvino": {}}, {}, True, True, ROUNDED, ROUNDED),
    "default": Precision(
        {"onnxruntime": {}, "openvino": {"precision": None}, "mnn": {"precision": "normal"}}, tolerance=ROUNDED
    ),
}
"""float32 is held to by all; "default" is what each engine does unasked: OpenVINO rounds to bfloat16 where the CPU
multiplies it. MNN and ONNX Runtime have no bfloat16 on x86, and MNN reads no such files of integers."""
