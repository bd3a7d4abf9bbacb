"""ONNX models read: older opsets in today's form, functions, and what is wrong with models."""

from __future__ import annotations

import contextlib
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from baselib.interpreter import python  # noqa: E402
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError  # noqa: E402
from cpuconv.graph.ir import Value  # noqa: E402
from cpuconv.graph.ops import OWN, TABLE  # noqa: E402
from cpuconv.graph.passes import noops  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from cpuconv.network.sizes.specialise import specialise  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import NEWEST, close, made, one_node, parse, run  # noqa: E402

X = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
RELU = "g (float[2,3,4,5] x) => (float[2,3,4,5] y) { y = Relu(x) }"

# op, attributes of the older form, opset, and (inputs, attributes) today
OLDER = [
    ("Clip", {"min": -0.5, "max": 0.5}, 7, ([np.float32(-0.5), np.float32(0.5)], {})),
    ("Clip", {"max": 0.5}, 10, ([None, np.float32(0.5)], {})),
    ("Slice", {"starts": [1, -3], "ends": [3, 9], "axes": [1, 3]}, 9, ([[1, -3], [3, 9], [1, 3]], {})),
    ("Slice", {"starts": [1], "ends": [2]}, 7, ([[1], [2]], {})),
    ("Pad", {"pads": [0, 0, 1, 2, 0, 0, 3, 4], "value": 2.0}, 10, ([[0, 0, 1, 2, 0, 0, 3, 4], np.float32(2)], {})),
    ("Pad", {"pads": [0, 0, 1, 2, 0, 0, 3, 4], "mode": "edge"}, 7, ([[0, 0, 1, 2, 0, 0, 3, 4]], {"mode": "edge"})),
    ("Unsqueeze", {"axes": [0, 2]}, 12, ([[0, 2]], {})),
    ("ReduceSum", {"axes": [1, 2], "keepdims": 0}, 12, ([[1, 2]], {"keepdims": 0})),
    ("ReduceMean", {"axes": [-1, 2]}, 17, ([[-1, 2]], {})),
    ("ReduceMax", {}, 12, ([], {})),
    ("Softmax", {"axis": 3}, 12, ([], {"axis": 3})),
    ("BatchNormalization", {"spatial": 1}, 7, ([np.ones(3, np.float32)] * 4, {})),
    ("Upsample", {"scales": [1.0, 1.0, 2.0, 3.0]}, 7, ([None, np.float32([1, 1, 2, 3])], {"nearest_mode": "floor"})),
    (
        "Upsample",
        {"scales": [1.0, 1.0, 2.0, 1.5], "mode": "linear"},
        7,
        ([None, np.float32([1, 1, 2, 1.5])], {"mode": "linear"}),
    ),
]


@pytest.mark.parametrize(("op", "attributes", "opset", "today"), OLDER)
def test_older_forms(op, attributes, opset, today):
    inputs, others = today
    inputs = [None if item is None else np.asarray(item) for item in inputs]
    given = [X, *inputs] if op == "BatchNormalization" else [X]
    old, feed = one_node(op, given, 1, opset, range(1, 9), **attributes)
    if op == "Upsample":
        others = {**others, "coordinate_transformation_mode": "asymmetric"}
    new, _ = one_node("Resize" if op == "Upsample" else op, [X, *inputs], 1, 18, range(1, 9), **others)
    assert [node.op for node in made(old, feed).nodes] == [node.op for node in made(new, feed).nodes]
    (got,), (expected,) = run(old, feed), run(new, feed)
    close(got, expected, 0)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_old_softmax_is_over_all_axes_from_one_on(opset, axis):
    model, feed = one_node("Softmax", [X], 1, opset, **({} if axis is None else {"axis": axis}))
    (got,) = run(model, feed)
    axis = 1 if axis is None else axis % 4
    flat = np.exp(X.reshape(int(np.prod(X.shape[:axis])), -1).astype(np.float64))
    close(got, (flat / flat.sum(1, keepdims=True)).reshape(X.shape).astype(np.float32))


@pytest.mark.parametrize("op", ["Add", "Mul", "PRelu"])
@pytest.mark.parametrize(("axis", "shape"), [(1, (3,)), (1, (3, 4)), (2, (4, 5)), (-2, (4,)), (None, (5,)), (None, ())])
def test_operands_of_opset_6_are_laid_along_an_axis(op, axis, shape):
    operand = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    if op == "PRelu" and shape not in ((3,), ()):
        return  # its axis is that of the channels
    attributes = {} if op == "PRelu" else {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    old, feed = one_node(op, [X, operand], 1, 6, **attributes)
    at = X.ndim - len(shape) if axis is None else axis % X.ndim
    aligned = operand.reshape((1,) * at + shape + (1,) * (X.ndim - at - len(shape)))
    new, others = one_node(op, [X, aligned])
    close(run(old, feed)[0], run(new, others)[0], 0)


def test_old_split_and_dropout():
    model, feed = one_node("Split", [X], 2, 11, axis=3, split=[2, 3])
    for got, expected in zip(run(model, feed), np.split(X, [2], 3), strict=True):
        close(got, expected)
    model, feed = one_node("Dropout", [X], 2, 10, ratio=0.3)
    same, mask = run(model, feed)
    close(same, X)
    assert mask.all() and mask.dtype == bool


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 3], [1, 1, 1.5, 1.2], [1, 1, 0.5, 0.5]])
def test_resize_of_opset_10_is_as_in_onnx_runtime(scales, mode):
    runtime = pytest.importorskip("onnxruntime")
    from support.graphs import runtime_session

    model, feed = one_node("Resize", [X, np.float32(scales)], 1, 10, [1], mode=mode)
    close(run(model, feed)[0], runtime_session(runtime, model).run(None, feed)[0])


def test_every_source_gives_the_same_graph(tmp_path):
    model = parse(RELU)
    onnx.save(model, tmp_path / "net.onnx")
    graphs = [read(source) for source in (model, model.SerializeToString(), tmp_path / "net.onnx")]
    assert {str(graph).split("(", 1)[1] for graph in graphs} == {
        "x: float32[2,3,4,5]) -> (y: float32[2,3,4,5])\n  y: float32[2,3,4,5] = Relu(x)"
    }
    assert [graph.name for graph in graphs] == ["g", "model", "net"]


def test_constants_are_initializers_and_constant_nodes_also_among_the_inputs():
    model = parse(
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> {"
        " c = Constant <value_ints = [3, 4]> () d = Cast <to = 1> (c) a = Mul (x, w) y = Add (a, d) }"
    )
    graph = read(model)
    assert graph.inputs == ("x",) and graph.constants.keys() == {"w", "c"}
    assert not graph.constants["w"].flags.writeable and not graph.constants["c"].flags.writeable
    close(run(model, {"x": np.float32([1, 1])})[0], np.float32([4, 6]))


def test_symbols_are_kept():
    graph = read(parse("g (float[N,3,H,2] x) => (float[N,3,M,2] y) { y = Relu(x) }"))
    assert graph.value("x") == Value(("N", 3, "H", 2), np.dtype(np.float32))
    assert graph.value("y").shape == ("N", 3, "M", 2)


def test_batch_normalization_of_matrices_is_by_channels_whatever_spatial_says():
    parts = [np.float32([[1, 2], [3, 4]]), *np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])]
    results = [
        run(*one_node("BatchNormalization", parts, 1, 7, range(1, 5), spatial=spatial), wide=True)[0]
        for spatial in (0, 1)
    ]
    close(results[0], results[1], 0)


def test_functions_of_the_model_are_inlined():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[3] x) => (float[3] y) { y = own.twice(x) }'
        ' <domain: "own", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }'
    )
    assert [node.op for node in read(model).nodes] == ["Add"]


def test_operators_that_the_table_does_not_know_run_in_the_evaluator():
    model, feed = one_node("Sinh", [X])
    (node,) = read(model).nodes
    assert node.op == "Sinh" and node.semantics is not None
    with pytest.warns(match="Sinh run through the reference evaluator"):
        (got,) = run(model, feed)
    close(got, ReferenceEvaluator(model).run(None, feed)[0])
    with pytest.raises(SourceError, match="has operators without kernels: Sinh"):
        made(model, feed, strict=True)


def test_a_form_that_the_table_does_not_know_runs_in_the_evaluator():
    model, _ = one_node("BatchNormalization", [X, *[X[0, :, 0, 0]] * 4], 3, training_mode=1)
    (node,) = read(model).nodes
    assert node.op == "ai.onnx.BatchNormalization" and node.semantics is not None


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
def test_numbers_of_other_kinds_than_bytes_are_dequantised_by_the_evaluator(kind):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, kind))
    model, feed = one_node("DequantizeLinear", [x, np.float32(0.5)], fixed=(0, 1))
    (got,) = run(model, feed)
    close(got, x.astype(np.float32) / 2)


def test_subgraphs_read_values_of_the_graph_around_them():
    model = parse(
        "g (bool c, float[3] x) => (float[3] y) { a = Neg(x) y = If (c) <"
        " then_branch = t () => (float[3] b) { b = Relu(a) }, else_branch = e () => (float[3] b) { b = Abs(x) }> }"
    )
    feed = {"c": np.array(True), "x": np.float32([1, -2, 3])}
    (got,) = run(model, feed)
    close(got, np.float32([0, 2, 0]))


def test_the_evaluator_serves_nodes_whose_inputs_are_renamed():
    model = parse("g (float[2,3] x) => (float[2,3] y) { a = Identity(x) y = Sinh(a) }")
    feed = {"x": np.float32([[1, 3, 2], [0, -1, -2]])}
    with pytest.warns(match="Sinh"):
        graph = noops.run(specialise(read(model)))
    assert [str(node) for node in graph.nodes] == ["y = Sinh(x)"]
    (got,) = interpret(graph, feed).values()
    close(got, np.sinh(feed["x"]))


# --- what is wrong with models --------------------------------------------------------------------------------------


def test_sources_that_are_no_models(tmp_path):
    with pytest.raises(
        ArgumentTypeError, match="Argument 'source' must be a path, bytes or an onnx.ModelProto, not an int"
    ):
        read(3)
    with pytest.raises(SourceError, match=r"nowhere\.onnx' must be an ONNX file that can be read"):
        read(tmp_path / "nowhere.onnx")
    with pytest.raises(SourceError, match="must be an ONNX file, and is a folder"):
        read(tmp_path)
    with pytest.raises(SourceError, match="must be an ONNX model, and is an empty file"):
        read(b"")
    with pytest.raises(SourceError, match="it has no graph with outputs"):
        read(onnx.ModelProto(ir_version=8))


def test_onnx_is_imported_to_read_a_model_and_not_before(environ):
    modules = "cpuconv.reading.onnx_reader, cpuconv.network.sizes.specialise"
    code = f"import sys, {modules}; assert 'onnx' not in sys.modules"
    subprocess.run(python("-c", code), env=environ, check=True)


def test_every_truncated_model_is_an_error_or_a_model():
    data = parse(RELU).SerializeToString()
    assert str(read(data))
    for length in range(len(data)):
        with pytest.raises(SourceError):
            read(data[:length])


LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_bvlc_alexnet.onnx"


def _graph_or_error(data: bytes) -> bool:
    """Whether the bytes are a model; what is wrong with them otherwise is said by a SourceError of one kind."""
    try:
        return str(read(data)) != ""
    except SourceError as error:
        assert "model" in str(error)
        return False


def test_every_fiftieth_truncation_of_a_network_is_an_error():
    data = LIGHT.read_bytes()
    assert _graph_or_error(data)
    assert not any(_graph_or_error(data[:length]) for length in range(0, len(data), 50))


def test_a_byte_changed_in_a_network_gives_an_error_or_a_graph():
    data, rng = LIGHT.read_bytes(), np.random.default_rng(0)
    read_ = 0
    for place, byte in zip(rng.integers(len(data), size=200), rng.integers(256, size=200), strict=True):
        changed = bytearray(data)
        changed[place] = byte
        read_ += _graph_or_error(bytes(changed))
    assert 0 < read_ < 200


@settings(max_examples=300)
@given(changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4))
def test_every_damaged_model_is_an_error_or_a_model(changes):
    model = parse(
        "g (float[1,2,4,4] x) => (float[1,2,3,3] y) <float[2,2,1,1] w = {1, 2, 3, 4}> {"
        " a = Conv <kernel_shape = [1, 1], group = 1> (x, w)"
        ' y = MaxPool <kernel_shape = [2, 2], auto_pad = "VALID"> (a) }'
    )
    data = bytearray(model.SerializeToString())
    for place, byte in changes:
        data[place % len(data)] = byte
    with warnings.catch_warnings(), contextlib.suppress(SourceError, ArgumentError):
        warnings.simplefilter("ignore")
        graph = made(bytes(data))
        feed = {name: np.zeros(graph.value(name).shape, graph.value(name).dtype) for name in graph.inputs}
        assert len(interpret(graph, feed)) == len(graph.outputs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[3] x) => (float[3] y) { y = Relu(z) }", "Relu node 'y' reads 'z', which nothing"),
        ("g (float[3] x) => (float[3] y) { z = Relu(x) }", "output 'y' is defined by nothing"),
        ("g (float[3] x) => (float[3] y) { y = Add(x, z) z = Neg(y) }", "cycle"),
        ("g (float[3] x) => (float[3] y) { y = Relu(x) y = Neg(x) }", "'y' twice"),
        ("g (string[3] x) => (string[3] y) { y = Identity(x) }", "the input 'x' must be a tensor of numbers"),
        ("g (seq(float[3]) x) => (float[3] y) { y = Relu(x) }", "the input 'x' must be a tensor of numbers"),
        ("g (float[3] x) => (float[3] y) { y = Rlu(x) }", "Rlu node 'y': there is no operator 'Rlu'"),
        ("g (float[3] x) => (float[3] y) { y = Copy(x) }", "there is no operator 'Copy'"),
        ("g (float[3] x) => (float[3] y) { y = com.some.Relu(x) }", "no operator 'Relu' of domain 'com.some'"),
    ],
)
def test_wrong_models(text, message):
    with pytest.raises(SourceError, match=message):
        read(parse(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[1,3,8,8] x, float[4,5,3,3] w) => (float[] y) { y = Conv(x, w) }", "Conv node 'y' cannot take"),
        ("g (float[2,3] x, float[2,3] w) => (float[] y) { y = MatMul(x, w) }", "the inner sizes differ"),
        ("g (float[2,3] x, float[4] w) => (float[] y) { y = Add(x, w) }", "do not broadcast"),
        ("g (float[2,3] x, double[2,3] w) => (float[] y) { y = Add(x, w) }", "must be float32 as 'x' is, not float64"),
        ("g (float[2,3] x) => (float[] y) { y, z = Relu(x) }", "Relu node 'y': outputs must be 1 in number, not 2"),
        ("g (float[2,3] x) => (float[] y) { y = Relu() }", "Relu node 'y': inputs must be 1 in number, not 0"),
        ("g (float[2,3] x) => (float[] y) { y = Add(x, ) }", "Add node 'y': inputs must be 2 in number, not 1"),
        ("g (float[2,3] x) => (float[] y) { y = Add(, x) }", "Add node 'y': inputs must not leave out number 0"),
        ("g (float[2,3] x) => (float[] y) { y = Concat(x, x) }", "Concat node 'y': the attribute 'axis' is missing"),
        ("g (float[2,3] x) => (float[] y) { y = Relu <alpha = 1> (x) }", "'Relu' has no attribute 'alpha'"),
        ("g (float[2,3] x) => (float[] y) { y = Softmax <axis = 1.0> (x) }", "'axis' must be of type INT"),
        ("g (float[2,3] x, float[2] w) => (float[] y) { y = Softmax <axis = 4> (x) }", "there is no axis 4"),
    ],
)
def test_nodes_that_do_not_fit(text, message):
    with pytest.raises(SourceError, match=message):
        made(parse(text))


def test_operators_are_known_to_onnx_or_our_own():
    assert {op for op in TABLE if not onnx.defs.has(op)} == OWN


def test_opsets():
    with pytest.raises(SourceError, match="the opset must be 6 or newer, not 5"):
        read(parse(RELU, 5))
    assert read(parse(RELU, NEWEST)).nodes[0].op == "Relu"


def test_constants_that_cannot_be_read():
    model = parse("g (float[6] x) => (float[6] y) { y = Add(x, w) }")
    model.graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[6], raw_data=b"\0" * 20))
    with pytest.raises(SourceError, match="the constant 'w' cannot be read"):
        read(model)
    model.graph.initializer[0].data_type = TensorProto.STRING
    with pytest.raises(SourceError, match="the constant 'w' must be a tensor of numbers"):
        read(model)
    model.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [6], np.zeros(6)))
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(SourceError, match="the constant 'w' is defined twice"):
        read(model)
