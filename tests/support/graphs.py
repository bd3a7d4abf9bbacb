"""Small models for tests of graphs, and the check that every operator's test ends in."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import cpuconv
from cpuconv.graph.ir import Graph
from cpuconv.graph.ops import TABLE
from cpuconv.network.definition import Definition
from cpuconv.network.interpret import interpret
from cpuconv.network.program_cache import ProgramCache
from cpuconv.network.sizes.specialise import specialise
from cpuconv.reading.onnx_reader import read

NEWEST = onnx.defs.onnx_opset_version()


class Case(NamedTuple):
    """One application of an operator: its inputs (None: left out), attributes, and how many outputs are asked for."""

    arrays: Sequence[np.ndarray | None]
    attributes: Mapping[str, object] = {}
    outputs: int = 1


def parse(text: str, opset: int = 17, **constants: ArrayLike) -> onnx.ModelProto:
    """A model from ONNX's textual form of a graph, as in ``g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }``, with
    more constants."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items())
    return model


def normal(rng: np.random.Generator, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Unit-normal float32 constants of these shapes."""
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def programs_of(model: cpuconv.Model) -> ProgramCache:
    """The programs that a model keeps."""
    return model._programs


def definition_of(model: cpuconv.Model) -> Definition:
    """What a model's programs are made from."""
    return model._definition


def one_node(
    op: str,
    arrays: Sequence[np.ndarray | None],
    outputs: int = 1,
    opset: int = NEWEST,
    /,
    fixed: Sequence[int] = (),
    domain: str = "",
    **attributes,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what to feed it; the inputs at the positions `fixed` are constants of the model."""
    names = ["" if array is None else f"x{at}" for at, array in enumerate(arrays)]
    results = [f"y{at}" for at in range(outputs)]
    given = {name: np.asarray(array) for name, array in zip(names, arrays, strict=True) if name}
    constant = {names[at] for at in fixed if at < len(names)}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
        if name not in constant
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, domain=domain, **attributes)],
        op,
        infos,
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(given[name], name) for name in constant if name],
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model, {name: array for name, array in given.items() if name not in constant}


def made(source: object, feed: Mapping[str, np.ndarray] | None = None, **keywords: object) -> Graph:
    """The model specialised to the shapes of `feed`."""
    graph = read(source)
    return specialise(graph, {name: array.shape for name, array in (feed or {}).items()}, **keywords)


def run(source: object, feed: Mapping[str, np.ndarray], wide: bool = False) -> list[np.ndarray]:
    """The outputs of a model by the references, in order."""
    return list(interpret(made(source, feed), feed, wide=wide).values())


def close(got: np.ndarray, expected: np.ndarray, limit: float = 2e-5) -> None:
    """See that arrays are of one dtype and shape, and floats within `limit` of the largest one."""
    expected = np.asarray(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    scale = max(1.0, float(np.abs(expected[finite]).max(initial=0.0)))
    np.testing.assert_allclose(got[finite], expected[finite], rtol=0, atol=limit * scale)


# Operators of which ONNX's evaluator computes something else than ONNX says, and what it gets wrong.
MISJUDGED = {
    "MaxPool": "padding of one axis, strides with SAME_LOWER",
    "AveragePool": "strides wider than the kernel with SAME_UPPER",
    "LpPool": "windows that hang over",
    "GlobalLpPool": "not there",
    "ConvTranspose": "groups",
    "GlobalMaxPool": "planes of other than two axes",
    "MeanVarianceNormalization": "a variance much smaller than the mean",
    "LpNormalization": "signs where p is 1",
    "LRN": "a batch greater than the channels",
    "Mean": "operands of different shapes",
    "ReduceSumSquare": "the type of int32",
    "Shape": "an end before the first axis",
    "Slice": "a start before the first element, backwards",
    "GatherElements": "indices smaller than the data",
    "NonMaxSuppression": "thresholds left out",
    "MaxUnpool": "places in a stated shape",
    "LSTM": "two directions, clips, other activations, lengths",
    "GRU": "two directions, clips, other activations, lengths",
    "RNN": "two directions, clips, other activations, lengths",
}
_RUNTIME_OPSET = 21


def expected(op: str, case: Case) -> list[np.ndarray]:
    """The outputs by ONNX's evaluator; where that is wrong, or rounds a place in float64, by ONNX Runtime."""
    rounded = case.attributes.get("mode") == "nearest"
    cropped = case.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"  # not where the scale is 1
    if op in MISJUDGED or (rounded and not cropped):
        runtime = pytest.importorskip("onnxruntime")
        model, feed = one_node(op, case.arrays, case.outputs, _RUNTIME_OPSET, **case.attributes)
        return runtime_session(runtime, model).run(None, feed)
    model, feed = one_node(op, case.arrays, case.outputs, **case.attributes)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(model).run(None, feed)


def runtime_session(runtime: ModuleType, model: onnx.ModelProto | str) -> object:
    """A session of ONNX Runtime on one thread that does not talk."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    source = model if isinstance(model, str) else model.SerializeToString()
    return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def check(op: str, case: Case) -> None:
    """Compare an operator's reference with others', and its shapes with ONNX's shape inference."""
    model, feed = one_node(op, case.arrays, case.outputs, NEWEST, TABLE[op].parameters, **case.attributes)
    graph = made(model, feed)
    assert not any(node.semantics for node in graph.nodes)
    got = list(interpret(graph, feed).values())
    for array, known in zip(got, expected(op, case), strict=True):
        close(array, known)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output
    for array, info in zip(got, inferred, strict=True):
        tensor = info.type.tensor_type
        if tensor.elem_type:
            assert helper.tensor_dtype_to_np_dtype(tensor.elem_type) == array.dtype
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            assert tuple(dim.dim_value for dim in tensor.shape.dim) == array.shape
