"""A strategy of cases for every operator of the graph's table, by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from support.graph import axes, draws, plain, quantised, sampled, sequences
from support.graph.draws import FLOAT, INT32
from support.graphs import Case

_INTS = (FLOAT, INT32)
_LOGIC = (np.dtype(bool),)
_slope = st.sampled_from((0.01, 0.5, 1.0, 1.5))
_norm = st.sampled_from((1, 2))


def _twofold(case: Case) -> Case:
    return case._replace(outputs=2)


CASES: dict[str, st.SearchStrategy[Case]] = {
    "Conv": draws.conv(),
    "ConvTranspose": draws.conv_transpose(),
    "MaxPool": draws.pool(),
    "AveragePool": draws.pool(count_include_pad=draws.FLAG),
    "LpPool": draws.pool(p=_norm),
    "MaxUnpool": draws.unpool(),
    "GlobalMaxPool": draws.planes(),
    "GlobalAveragePool": draws.planes(),
    "GlobalLpPool": draws.planes(p=_norm),
    "BatchNormalization": draws.planes(4, least_rank=2),
    "InstanceNormalization": draws.planes(2),
    "VolumeNormalization": draws.volume_norm(),
    "GroupNormalization": draws.group_norm(),
    "LayerNormalization": draws.layer_norm(),
    "LpNormalization": draws.along(p=_norm),
    "MeanVarianceNormalization": draws.planes(least_rank=4, least=3),
    "LRN": draws.planes(least_rank=4, size=st.sampled_from((1, 3, 5)), alpha=_slope, bias=st.sampled_from((1.0, 2.0))),
    "Softmax": draws.along(),
    "LogSoftmax": draws.along(),
    "Hardmax": draws.along(),
    "Det": plain.matrices(),
    "Unique": plain.repeated(),
    "AffineGrid": plain.transforms(),
    "Relu": draws.unary(dtypes=_INTS),
    "Clip": draws.clip(),
    "LeakyRelu": draws.unary(alpha=_slope),
    "PRelu": draws.broadcast(onto_first=True),
    "ThresholdedRelu": draws.unary(alpha=_slope),
    "Elu": draws.unary(alpha=_slope),
    "Selu": draws.unary(alpha=_slope, gamma=_slope),
    "Celu": draws.unary(alpha=_slope),
    "Sigmoid": draws.unary(),
    "HardSigmoid": draws.unary(alpha=_slope, beta=_slope),
    "HardSwish": draws.unary(),
    "Tanh": draws.unary(),
    "Softplus": draws.unary(),
    "Softsign": draws.unary(),
    "Mish": draws.unary(),
    "Swish": draws.unary(alpha=_slope),
    "Gelu": draws.unary(approximate=st.sampled_from(("none", "tanh"))),
    "Add": draws.broadcast(dtypes=_INTS),
    "Sub": draws.broadcast(dtypes=_INTS),
    "Mul": draws.broadcast(dtypes=_INTS),
    "Div": draws.broadcast(nonzero=True),
    "Pow": draws.broadcast(base=0.1),
    "Mod": draws.broadcast(dtypes=(INT32,), nonzero=True, fmod=draws.FLAG),
    "Min": draws.broadcast(3, dtypes=_INTS),
    "Max": draws.broadcast(3, dtypes=_INTS),
    "Sum": draws.broadcast(3),
    "Mean": draws.broadcast(3),
    "Neg": draws.unary(dtypes=_INTS),
    "Abs": draws.unary(dtypes=_INTS),
    "Sign": draws.unary(dtypes=_INTS),
    "Reciprocal": draws.unary(0.1),
    "Sqrt": draws.unary(0),
    "Exp": draws.unary(),
    "Log": draws.unary(0.1),
    "Sin": draws.unary(),
    "Cos": draws.unary(),
    "Erf": draws.unary(),
    "Floor": draws.unary(),
    "Ceil": draws.unary(),
    "Round": draws.unary(),
    "Elementwise": draws.elementwise(),
    "Equal": draws.broadcast(dtypes=_INTS),
    "Less": draws.broadcast(dtypes=_INTS),
    "LessOrEqual": draws.broadcast(dtypes=_INTS),
    "Greater": draws.broadcast(dtypes=_INTS),
    "GreaterOrEqual": draws.broadcast(dtypes=_INTS),
    "And": draws.broadcast(dtypes=_LOGIC),
    "Or": draws.broadcast(dtypes=_LOGIC),
    "Xor": draws.broadcast(dtypes=_LOGIC),
    "Not": draws.unary(dtypes=_LOGIC),
    "IsNaN": draws.unary(),
    "IsInf": draws.unary(),
    "Where": draws.where(),
    "MatMul": draws.matmul(),
    "ScaledDotProductAttention": draws.attention(),
    "Linear": draws.linear(),
    "Gemm": draws.gemm(),
    "Einsum": draws.einsum(),
    "ReduceSum": axes.reduce(),
    "ReduceMean": axes.reduce(dtypes=(FLOAT,)),
    "ReduceMax": axes.reduce(),
    "ReduceMin": axes.reduce(),
    "ReduceProd": axes.reduce(),
    "ReduceL1": axes.reduce(),
    "ReduceL2": axes.reduce(dtypes=(FLOAT,)),
    "ReduceSumSquare": axes.reduce(),
    "ReduceLogSum": axes.reduce(positive=True, dtypes=(FLOAT,)),
    "ReduceLogSumExp": axes.reduce(dtypes=(FLOAT,)),
    "Concat": axes.concat(),
    "InterleaveImages": axes.interleave_images(),
    "UnfoldImages": axes.unfold_images(),
    "Split": axes.split(),
    "Slice": axes.slice_(),
    "Pad": axes.pad(),
    "Tile": axes.tile(),
    "Transpose": axes.transpose(),
    "Reshape": axes.reshape(),
    "Flatten": axes.flatten(),
    "Squeeze": axes.squeeze(),
    "Unsqueeze": axes.unsqueeze(),
    "Copy": draws.unary(dtypes=_INTS),
    "Identity": draws.unary(dtypes=_INTS),
    "Cast": axes.cast(),
    "CastLike": axes.cast_like(),
    "Expand": axes.expand(),
    "Shape": axes.shape_of(),
    "Size": draws.unary(),
    "ConstantOfShape": axes.constant_of_shape(),
    "Range": axes.range_(),
    "Gather": axes.gather(),
    "GatherElements": axes.gather_elements(),
    "GatherND": axes.gather_nd(),
    "ScatterElements": axes.scatter_elements(),
    "ScatterND": axes.scatter_nd(),
    "TensorScatter": axes.tensor_scatter(),
    "OneHot": axes.one_hot(),
    "Trilu": axes.trilu(),
    "ArgMax": draws.along(keepdims=draws.FLAG, select_last_index=draws.FLAG),
    "ArgMin": draws.along(keepdims=draws.FLAG, select_last_index=draws.FLAG),
    "TopK": axes.top_k(),
    "NonZero": draws.unary(dtypes=(FLOAT, INT32, *_LOGIC)),
    "BoundedNonZero": draws.unary(dtypes=(FLOAT, INT32, *_LOGIC)).map(_twofold),
    "Compress": axes.compress(),
    "Leading": axes.leading(),
    "CumSum": axes.cum_sum(),
    "Resize": draws.resize(),
    "DepthToSpace": draws.blocks(True),
    "SpaceToDepth": draws.blocks(False),
    "GridSample": draws.grid_sample(),
    "MultiScaleDeformableAttention": sampled.attention(),
    "DeformConv": sampled.deformed(),
    "DeformableIm2col": sampled.deformed(columns=True),
    "RoiAlign": sampled.regions(),
    "LSTM": sequences.layer(4, 2, peepholes=True, input_forget=draws.FLAG),
    "QuantizedLSTM": sequences.quantised_lstm(),
    "GRU": sequences.layer(3, 1, linear_before_reset=draws.FLAG),
    "RNN": sequences.layer(1, 1),
    "NonMaxSuppression": sequences.boxes(),
    "BoundedNonMaxSuppression": sequences.boxes().map(_twofold),
    "QuantizeLinear": quantised.quantize(),
    "QuantizedConv": quantised.quantized_conv(),
    "Lookup": quantised.lookup(),
    "QuantizedMatMul": quantised.quantized_matmul(),
    "QuantizedAttention": quantised.attention(),
    "QuantizedMean": quantised.mean(),
    "QuantizedAveragePool": quantised.of_bytes(draws.pool(count_include_pad=draws.FLAG)),
    "QuantizedLayerNormalization": quantised.of_bytes(draws.layer_norm()),
    "QuantizedReduceMean": quantised.of_bytes(axes.reduce(dtypes=(FLOAT,))),
    "QuantizedSoftmax": quantised.of_bytes(draws.along()),
    "QuantizedResize": quantised.of_bytes(draws.resize().filter(lambda case: case.attributes["mode"] == "linear")),
    "QuantizedLinear": quantised.quantized_linear(),
    "DequantizeLinear": quantised.dequantize(),
    "DynamicQuantizeLinear": quantised.dynamic(),
    "Span": quantised.span(),
    "ConvInteger": quantised.conv_integer(),
    "MatMulInteger": quantised.matmul_integer(),
}

KNOWN = dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "Linear", "QuantizedConv", "QuantizedLinear"), (1, 2))
KNOWN["VolumeNormalization"] = (1, 2)
KNOWN |= {"Lookup": (1,), "QuantizedLSTM": (1, 2, 3, 7)}
"""Operands that operators must know beforehand to have kernels, beside those that their rules read."""

_TIES = ("QuantizedAveragePool", "QuantizedLayerNormalization", "QuantizedReduceMean", "QuantizedResize")
_TIES += ("QuantizedAttention", "QuantizedSoftmax", "Span", "Elementwise")
TOLERANCES: dict[str, dict[str, Any]] = dict.fromkeys(_TIES, {"ties": True})
TOLERANCES["QuantizedLSTM"] = {"tolerance": 1e-2, "least": 1.0}
"""How far kernels may be off: where results, or a zero point, lie between two integers, and where states do."""


def drawn(strategy: st.SearchStrategy[Case], count: int, number: int = 1) -> list[Case]:
    """A few cases of an operator, always the same ones; another number draws others."""
    cases: list[Case] = []

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def draw(case: Case) -> None:
        cases.append(case)

    draw()
    return cases
