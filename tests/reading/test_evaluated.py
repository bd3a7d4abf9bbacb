"""What ONNX's evaluator computes for us: as ONNX Runtime does, or refused when a model is read."""

from __future__ import annotations

import itertools
import warnings

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.errors import ArgumentTypeError, SourceError  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402
from cpuconv.reading.evaluated import FORMS, OPERATORS, SEQUENCES  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import one_node, parse, runtime_session  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::cpuconv.errors.CpuconvWarning")
RNG = np.random.default_rng(0)
LEARNERS = "ai.onnx.ml"


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape)


def _cases():
    """Operator, opset, inputs and attributes, in the forms that the operator has."""
    for op in ("Acos", "Asin", "Atan", "Atanh", "Sinh", "Cosh", "Tan", "Asinh"):
        yield op, 9, [f(9) / 4], {}
    yield "Acosh", 9, [abs(f(9)) + 1], {}
    for dtype, way in itertools.product((np.uint8, np.uint32, np.uint64), ("LEFT", "RIGHT")):
        yield "BitShift", 11, [i(255, 20).astype(dtype), i(40, 20).astype(dtype)], {"direction": way}
    for op, dtype in itertools.product(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), (np.int8, np.uint64)):
        yield op, 18, [i(99, 3, 4).astype(dtype), i(99, 4).astype(dtype)], {}
    yield "BitwiseNot", 18, [i(99, 7).astype(np.int16)], {}
    for op, count in itertools.product(("HannWindow", "HammingWindow", "BlackmanWindow"), (1, 2, 9)):
        yield from ((op, 17, [np.array(count)], {"periodic": periodic}) for periodic in (0, 1))
    for axes in (None, [0, 2], [-1], [1, 0]):
        stated = {} if axes is None else {"axes": axes}
        yield "CenterCropPad", 18, [f(5, 8, 3), i(9, 3 if axes is None else len(axes)) + 1], stated
    for stride, pads, dilation in itertools.product((1, 2), ([0] * 4, [1, 0, 1, 2]), (1, 2)):
        high, wide = (6 + pads[0] + pads[2] - dilation - 1) // stride + 1, 7 + pads[1] + pads[3] - 2
        arrays = [f(2, 18, high * wide), np.array([6, 7]), np.array([2, 3])]
        yield "Col2Im", 18, arrays, {"strides": [stride, 1], "pads": pads, "dilations": [dilation, 1]}
    for inverse, sided in ((0, 0), (0, 1), (1, 0)):
        flags, parts = {"inverse": inverse, "onesided": sided}, 1 + inverse
        yield "DFT", 17, [f(2, 6, 5, parts)], {"axis": 1, **flags}
        yield "DFT", 17, [f(2, 6, 5, parts), np.array(4)], {"axis": 2, **flags}
        yield "DFT", 20, [f(2, 6, 5, parts), np.array(8), np.array(1)], flags
        yield "DFT", 20, [f(2, 6, 5, parts), None, np.array(-2)], flags
    for sided in (0, 1):
        yield "STFT", 17, [f(2, 40, 1), np.array(5), f(16)], {"onesided": sided}
        yield "STFT", 17, [f(2, 40, 1), np.array(7), None, np.array(16)], {"onesided": sided}
    yield "MelWeightMatrix", 17, [np.array(n) for n in (8, 32, 8000)] + [np.float32(20), np.float32(3500)], {}
    for k, dtype in itertools.product((-2, 0, 1), (None, 1, 6, 7)):
        yield "EyeLike", 9, [f(3, 4)], {"k": k, **({} if dtype is None else {"dtype": dtype})}
    for how, weights, ignored in itertools.product(("mean", "sum", "none"), (None, f(5) ** 2), (None, 1)):
        attributes = {"reduction": how, **({} if ignored is None else {"ignore_index": ignored})}
        for shape in ((4, 5), (2, 5, 3, 2)):
            chosen = i(5, shape[0], *shape[2:])
            yield "NegativeLogLikelihoodLoss", 13, [f(*shape), chosen, weights], attributes
            yield "SoftmaxCrossEntropyLoss", 13, [f(*shape), chosen, weights], attributes
    for batch in (0, 1):
        yield "ReverseSequence", 10, [f(4, 4, 2), np.array([1, 4, 2, 3])], {"batch_axis": batch, "time_axis": 1 - batch}
    yield "Shrink", 9, [f(20)], {"bias": 0.2, "lambd": 0.4}
    yield "Shrink", 9, [i(5, 9).astype(np.int32)], {"lambd": 2.0, "bias": 1.0}
    grams = {"ngram_counts": [0, 3], "ngram_indexes": [0, 1, 2, 3, 4], "pool_int64s": [1, 2, 3, 1, 2, 3, 4]}
    grams |= {"max_gram_length": 2, "min_gram_length": 1, "max_skip_count": 2, "weights": [1.0, 2.0, 0.5, 0.3, 2.0]}
    yield from (
        ("TfIdfVectorizer", 9, [i(6, 2, 9).astype(np.int32)], {"mode": m, **grams}) for m in ("TF", "IDF", "TFIDF")
    )
    for stated in ({}, {"is_causal": 1}, {"scale": 0.3}, {"softcap": 2.0}):
        yield "Attention", 23, [f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 8)], stated
        yield "Attention", 23, [f(2, 4, 3, 8), f(2, 4, 5, 8), f(2, 4, 5, 8), f(3, 5)], stated
        heads = {"q_num_heads": 4, "kv_num_heads": 2}
        yield "Attention", 23, [f(2, 3, 32), f(2, 5, 16), f(2, 5, 16)], {**stated, **heads}


def _learned():
    """Those of ai.onnx.ml."""
    yield "ArrayFeatureExtractor", 1, [f(3, 4), np.array([0, 2])], {}
    yield "Binarizer", 1, [f(3, 4)], {"threshold": 0.3}
    yield "FeatureVectorizer", 1, [f(3, 4), f(3, 2)], {"inputdimensions": [4, 2]}
    lost = {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")}
    yield "Imputer", 1, [np.where(f(3, 4) > 0.5, np.nan, f(3, 4)).astype(np.float32)], lost
    yield "Imputer", 1, [i(3, 3, 4)], {"imputed_value_int64s": [9], "replaced_value_int64": 1}
    yield "LinearRegressor", 1, [f(3, 4)], {"coefficients": f(8).tolist(), "intercepts": [0.1, 0.2], "targets": 2}
    yield from (("Normalizer", 1, [f(3, 4)], {"norm": norm}) for norm in ("L1", "L2"))
    yield "OneHotEncoder", 1, [i(4, 5)], {"cats_int64s": [0, 1, 3], "zeros": 1}
    yield "Scaler", 1, [f(3, 4)], {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [2.0, 3.0, 1.0, 0.5]}
    yield (
        "LabelEncoder",
        2,
        [i(4, 5)],
        {"keys_int64s": [0, 1, 3], "values_floats": [0.5, 1.5, 2.5], "default_float": -1.0},
    )
    yield "LabelEncoder", 2, [i(4, 5)], {"keys_int64s": [0, 1, 3], "values_int64s": [5, 6, 7]}
    modes = ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"]
    tree = {"nodes_treeids": [0] * 5 + [1] * 3, "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2], "nodes_modes": modes}
    tree |= {"nodes_featureids": [0, 0, 1, 0, 0, 2, 0, 0], "nodes_values": [0.1, 0.0, -0.2, 0.0, 0.0, 0.3, 0.0, 0.0]}
    tree |= {"nodes_truenodeids": [1, 0, 3, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 0, 4, 0, 0, 2, 0, 0]}
    tree |= {"target_treeids": [0, 0, 0, 1, 1], "target_nodeids": [1, 3, 4, 1, 2], "target_ids": [0, 1, 0, 1, 0]}
    tree |= {"target_weights": [1.0, 2.0, 3.0, 0.5, -0.5], "n_targets": 2}
    for how in FORMS["TreeEnsembleRegressor"]["aggregate_function"]:
        yield "TreeEnsembleRegressor", 3, [f(6, 3)], {**tree, "aggregate_function": how}
    for kind in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        vectors = {"n_supports": 2, "rho": [0.3], "support_vectors": f(8).tolist(), "coefficients": f(2).tolist()}
        yield "SVMRegressor", 1, [f(3, 4)], {"kernel_type": kind, "kernel_params": [0.5, 0.1, 2.0], **vectors}


CASES, LEARNED = list(_cases()), list(_learned())
NO_RUNTIME = {"SwiGLU", "BitCast", "CausalConvWithState", "LinearAttention", "CumProd", "ImageDecoder"}
NO_RUNTIME |= {"TreeEnsemble"}  # operators that ONNX Runtime has not; ONNX's node tests have them
ELSEWHERE = {"BatchNormalization", "GroupNormalization", "SequenceAt", "SequenceLength"}
ELSEWHERE |= {"ConcatFromSequence", *SEQUENCES}


def test_every_operator_has_a_case():
    assert {case[0] for case in CASES} | NO_RUNTIME - {"TreeEnsemble"} | ELSEWHERE == OPERATORS[""]
    assert {case[0] for case in LEARNED} | {"TreeEnsemble"} == OPERATORS[LEARNERS]
    assert not OPERATORS[""] & TABLE.keys() - {"BatchNormalization", "GroupNormalization"}


@pytest.mark.parametrize("case", [*CASES, *LEARNED], ids=lambda case: case[0])
def test_as_onnx_runtime(case):
    op, opset, arrays, attributes = case
    domain = "" if case[0] in OPERATORS[""] else LEARNERS
    model, feed = one_node(op, arrays, 1, 17 if domain else opset, domain=domain, **attributes)
    for entry in model.opset_import:
        entry.version = opset if entry.domain == domain else entry.version
    (expected,) = runtime_session(runtime, model).run(None, feed)
    (got,) = cpuconv.compile(model, strategy="heuristic").run(feed).values()
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("op", "domain", "attributes", "said"),
    [
        ("LinearClassifier", LEARNERS, {"coefficients": [1.0]}, "no kernel for this operator"),
        ("TreeEnsembleClassifier", LEARNERS, {}, "no kernel for this operator"),
        ("Normalizer", LEARNERS, {}, "'norm' must be L1 or L2, not MAX"),
        ("LinearRegressor", LEARNERS, {"post_transform": "SOFTMAX"}, "'post_transform' must be NONE, not SOFTMAX"),
        ("TreeEnsembleRegressor", LEARNERS, {"aggregate_function": "MIN"}, "must be SUM or AVERAGE, not MIN"),
        ("Gradient", "ai.onnx.preview.training", {"xs": ["x0"], "y": "x0"}, "no kernel for this operator"),
        ("RegexFullMatch", "", {"pattern": "a"}, "must be no tensor of numbers"),
    ],
)
def test_operators_and_forms_that_are_refused_when_a_model_is_read(op, domain, attributes, said):
    model, _ = one_node(op, [f(2, 4)], 2 if "Classifier" in op else 1, 20, domain=domain, **attributes)
    for entry in model.opset_import:
        entry.version = 3 if entry.domain == LEARNERS else entry.version
    with pytest.raises(SourceError, match=f"{op} node 'y0': .*{said}"):
        read(model)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
def test_root_mean_squares_of_large_numbers(dtype, axis):
    """Squares are beyond float16; ONNX asks for float32."""
    x = (RNG.uniform(200, 900, (3, 4, 5))).astype(dtype)
    scale = np.linspace(1, 2, np.prod(x.shape[axis:], dtype=int)).astype(dtype).reshape(x.shape[axis:])
    model, feed = one_node("RMSNormalization", [x, scale], 1, 23, axis=axis)
    (got,) = cpuconv.compile(model, strategy="heuristic", strict=True).run(feed).values()
    wide, axes = x.astype(float), tuple(range(axis % 3, 3))
    wanted = wide / np.sqrt((wide**2).mean(axes, keepdims=True) + 1e-5) * scale.astype(float)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(float), wanted, rtol=4 * float(ml_dtypes.finfo(dtype).eps))


def test_opsets_before_the_oldest_for_what_has_not_changed():
    x = np.array([True, False])
    model, feed = one_node("Not", [x], 1, 1)
    assert (cpuconv.compile(model, strategy="heuristic").run(feed)["y0"] == ~x).all()
    for op in ("Add", "Relu", "Cast"):
        model, _ = one_node(op, [f(2)] * (2 if op == "Add" else 1), 1, 1)
        with pytest.raises(SourceError, match="opset must be 6 or newer, not 1"):
            read(model)


def test_models_of_another_domain_alone():
    model, feed = one_node("Binarizer", [f(3, 4)], domain=LEARNERS, threshold=0.5)
    del model.opset_import[0]
    assert [entry.domain for entry in model.opset_import] == [LEARNERS]
    np.testing.assert_array_equal(cpuconv.compile(model).run(feed)["y0"], feed["x0"] > 0.5)
    model.graph.node.append(helper.make_node("Neg", ["x0"], ["z"]))
    with pytest.raises(SourceError, match="opset must be 6 or newer, not unstated"):
        read(model)


# --- optional values and sequences ----------------------------------------------------------------------------------


def test_optional_values_that_are_there():
    text = """g (float[3] x) => (float[] y, bool h, bool n) {
        o = Optional(x) h = OptionalHasElement(o) e = OptionalGetElement(o) y = Neg(e)
        a = Optional<type = float[3]>() n = OptionalHasElement(a) }"""
    model = parse(text, 18)
    results = cpuconv.compile(model, strategy="heuristic", strict=True).run({"x": np.arange(3, dtype=np.float32)})
    assert results["y"].tolist() == [0, -1, -2] and results["h"] and not results["n"]
    assert cpuconv.compile(parse("g () => (bool y) { y = OptionalHasElement() }", 18)).run({})["y"] == np.array(False)


def test_an_optional_value_that_is_not_there():
    text = "g (float[3] x) => (float[] y) { a = Optional<type = float[3]>() y = OptionalGetElement(a) }"
    with pytest.raises(SourceError, match="OptionalGetElement node 'y': there is no element in 'a'"):
        read(parse(text, 18))


def test_an_input_that_is_optional_must_be_fed():
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    nodes = [helper.make_node("OptionalHasElement", ["x"], ["h"]), helper.make_node("OptionalGetElement", ["x"], ["y"])]
    ends = [helper.make_tensor_value_info("h", TensorProto.BOOL, []), helper.make_tensor_value_info("y", 1, [2])]
    graph = helper.make_graph(nodes, "g", [helper.make_value_info("x", kind)], ends)
    made = cpuconv.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    results = made.run({"x": np.ones(2, np.float32)})
    assert results["h"] and results["y"].tolist() == [1, 1]
    with pytest.raises(ArgumentTypeError, match=r"feed\['x'\]"):
        made.run({"x": None})


SEQUENCE = """g (float[6,2] x, float[1,2] z) => (float[] y, float[] last, int64 n, float[] joined) {{
    parts = {made}
    n = SequenceLength(parts)
    minus = Constant<value = int64 {{-1}}>()
    last = SequenceAt(parts, minus)
    more = SequenceInsert(parts, z)
    fewer = SequenceErase(more, minus)
    more2 = SequenceInsert(fewer, z, minus)
    joined = ConcatFromSequence<axis = 0>(more2)
    y = MatMul(last, w)
}}"""


@pytest.mark.parametrize(
    "made", ["SplitToSequence<axis = 0>(x, cuts)", "SequenceConstruct(x, z)", "SequenceConstruct(x, x)"]
)
@pytest.mark.parametrize("fed", [True, False])
def test_sequences_within_a_network(made, fed, tmp_path):
    """Sequences of tensors of equal shapes are no stack of them; those of constants neither."""
    arrays = {"x": f(6, 2), "z": f(1, 2)}
    model = parse(SEQUENCE.format(made=made), cuts=np.array([1, 3, 2]), w=f(2, 3), **({} if fed else arrays))
    if not fed:
        del model.graph.input[:]
    feed = arrays if fed else {}
    expected = runtime_session(runtime, model).run(None, feed)
    compiled = cpuconv.compile(model, strategy="heuristic")
    compiled.save(tmp_path / "model")
    for each in (compiled, cpuconv.load(tmp_path / "model")):
        for got, wanted in zip(each.run(feed).values(), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_sequences_at_the_ends_of_a_network():
    with pytest.raises(SourceError, match="the output 'y' must be a tensor"):
        read(parse("g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x, x) }"))
    with pytest.raises(SourceError, match="the input 'x' must be a tensor"):
        read(parse("g (seq(float[2]) x) => (float[] y) { y = ConcatFromSequence<axis = 0>(x) }"))
    text = "g (float[2] x) => (float[] y) { s = SequenceConstruct(x, x) y = Neg(s) }"
    with warnings.catch_warnings(), pytest.raises(SourceError, match="Neg node 'y' must be given tensors"):
        cpuconv.compile(parse(text), strategy="heuristic").run({"x": f(2)})
