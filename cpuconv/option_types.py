"""Types of the options of public calls, so that a type checker rejects misspelt values.

They are annotations only; at run time every call validates its options itself. `tests/project/test_types.py` checks
that each `Literal` has the values that the calls accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

Strategy = Literal["heuristic", "cached", "profile"]
Accuracy = Literal["exact", "standard", "fast"]
Precision = Literal["float32", "bfloat16", "f32", "fp32", "bf16", "float16", "fp16", "f16", "half"]
PrecisionOrAuto = Literal["float32", "bfloat16", "f32", "fp32", "bf16", "float16", "fp16", "f16", "half", "auto"]
LayoutName = Literal["NCHW", "NHWC", "NCHW4c", "NCHW8c", "NCHW16c", "NCHW32c", "NCHW64c", "NCHW44", "NCHW44_DOT"]
LayoutNameOrAuto = LayoutName | Literal["auto"]
ActivationName = Literal[
    "relu", "relu6", "sigmoid", "tanh", "silu", "hardsigmoid", "hardswish", "gelu", "gelu_tanh", "selu", "softplus",
    "mish",
]  # fmt: skip
Activation = (
    ActivationName
    | tuple[Literal["clip"], float, float]
    | tuple[Literal["leaky_relu", "elu", "swish"], float]
    | tuple[ActivationName]
)
Pair = int | tuple[int, int] | list[int]
Padding = Pair | tuple[tuple[int, int], tuple[int, int]] | Literal["valid", "same", "same_upper", "same_lower"]
Hint = Literal["latency", "throughput"]
Threads = int | Literal["auto"] | None
NodePrecisions = Mapping[str, Precision]


class ConvOptions(TypedDict, total=False):
    """Options of `conv2d` for arrays of all types."""

    activation: Activation | None
    residual: object
    in_layout: LayoutName
    out_layout: LayoutName
    out: object
    threads: Threads
    strategy: Strategy
    accuracy: Accuracy
    workspace_limit: int | None
    reproducible: bool


class ExplainOptions(TypedDict, total=False):
    """Options that `explain` passes on, documented in `plan`."""

    activation: Activation | None
    in_layout: LayoutNameOrAuto
    out_layout: LayoutNameOrAuto
    threads: Threads
    strategy: Strategy
    accuracy: Accuracy
    workspace_limit: int | None
    reproducible: bool
    algorithm: str | None
