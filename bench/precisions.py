"""Precisions in which engines run whole networks: the peers that support each, and the options that select it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.oracle import CPUCONV_TOLERANCE
from bench.peers import CPUCONV, OWN_F32
from bench.settings import PLAIN, Settings

PEER_TOLERANCE = 1e-3  # for float32, relative to the largest value
ROUNDED = 0.5  # the same for low precision: with random weights, rounding alone may cause such errors
Options = Mapping[str, object]


@dataclass(frozen=True)
class Precision:
    """A precision in which networks run.

    Attributes
    ----------
    peers : Mapping[str, Options]
        Other engines that support it, and keyword arguments of their classes.
    ours : Options
        Keyword arguments of cpuconv's class.
    own_float32 : bool
        Whether cpuconv in float32 is timed, too.
    quantized : bool
        Whether int8 files run instead of the networks' own.
    tolerance, own_tolerance : float
        The largest errors, of peers and of cpuconv, with which figures count.
    """

    peers: Mapping[str, Options]
    ours: Options = field(default_factory=dict)
    own_float32: bool = False
    quantized: bool = False
    tolerance: float = PEER_TOLERANCE
    own_tolerance: float = CPUCONV_TOLERANCE

    def settings(self, peers: Sequence[str], **more: Any) -> Settings:
        """Return the settings of a comparison with the peers that support it, after cpuconv in float32 if it is timed;
        `more` has other fields."""
        return Settings(
            **more,
            layouts=(PLAIN,),
            peers=(*([OWN_F32] if self.own_float32 else []), *(key for key in peers if key in self.peers)),
            tolerance=self.tolerance,
            own_tolerance=self.own_tolerance,
            options={CPUCONV: self.ours, **self.peers},
            roofs=False,
        )


TABLE: Mapping[str, Precision] = {
    "float32": Precision(
        dict.fromkeys(("onnxruntime", "openvino", "mnn", "torch", "iree", "litert", "opencv", "tvm"), {})
    ),
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
"""In "float32" all engines are forced to float32. "default" has no precision option: OpenVINO then computes in bfloat16
if the CPU has instructions for it. MNN and ONNX Runtime have no bfloat16 on x86, and MNN does not read QDQ files."""
