"""Time and memory of reading and rewriting grow no faster than a model: twice the file takes about twice as much.

Calls of functions are counted, which no other process changes. What they do not show, such as copies of long lists, is
seen by processor time, of which a quadratic step takes sixteen times as much where four are allowed.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.conv.choice.target import Target  # noqa: E402
from cpuconv.errors import MAX_MESSAGE, ArgumentError, SourceError  # noqa: E402
from cpuconv.graph.ops import OWN  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.network import folding  # noqa: E402
from cpuconv.network.saved.encoding import _expression_from_plain  # noqa: E402
from cpuconv.network.selection.layout import lay_out  # noqa: E402
from cpuconv.network.sizes.prepared import Rewriting, prepared  # noqa: E402
from cpuconv.network.sizes.shape_inputs import shape_inputs  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.damage.fuzz_targets import drawn  # noqa: E402
from support.damage.growing import GROWING  # noqa: E402
from support.graph.cases import CASES  # noqa: E402
from support.graphs import close, one_node, parse  # noqa: E402

TARGET = Target(current(), 1, "heuristic")
LOGARITHMIC = 5.5  # times as many calls where a model is four times as large: n log n
NOISE = 10  # times as much processor time: half way to a quadratic step, on a machine that does other work
SECONDS, BYTES = 5.0, 1 << 30  # of a model of a megabyte or less
SLACK = 0.3  # seconds
ROUNDS = 4  # trials of a time that may be disturbed


def _ready(data: bytes) -> str:
    """What becomes of a model: it is made ready as far as that goes without kernels, or what its refusal says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph = read(data)
            assert not shape_inputs(graph)
            shapes = {name: [n if isinstance(n, int) else 2 for n in graph.value(name).shape] for name in graph.inputs}
            lay_out(prepared(graph, shapes, Rewriting()).graph, TARGET)
        except SourceError as error:
            return str(error)
    return ""


def _measured(data: bytes) -> tuple[int, float]:
    """Calls of functions, and seconds of the processor."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    start = time.process_time()
    sys.setprofile(count)
    try:
        _ready(data)
    finally:
        sys.setprofile(None)
    return calls, time.process_time() - start


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GROWING)
def test_time_and_memory_grow_with_a_model(name):
    make, size, said = GROWING[name]
    small, large = make(size), make(4 * size)
    assert len(large) < 1 << 20
    assert said in _ready(small) if said else not _ready(small)
    for attempt in range(ROUNDS):
        (few, short), (many, long) = _measured(small), _measured(large)
        if long < NOISE * short + SLACK and long < SECONDS:
            break
        assert attempt < ROUNDS - 1, f"{short:.2f} s become {long:.2f} s"
    assert many < LOGARITHMIC * few + 2000, f"{few} calls become {many}"
    tracemalloc.start()
    try:
        said = _ready(large)
        assert tracemalloc.get_traced_memory()[1] < BYTES * len(large) / (1 << 20) + (32 << 20)
    finally:
        tracemalloc.stop()
    assert len(said) <= MAX_MESSAGE


# --- what is computed of constants ----------------------------------------------------------------------------------

PLANE = "<int64[4] s = {1, 1, 600, 600}, int64[4] t = {1, 1, 200, 200}> { a = ConstantOfShape(s) w = ConstantOfShape(t)"
WIDE = "kernel_shape = [200, 200]"
LONG = "<int64[1] s = {400000000}> { a = ConstantOfShape(s)"
COSTLY = {
    "Conv": f"{PLANE} y = Conv(a, w) }}",
    "ConvTranspose": f"{PLANE} y = ConvTranspose(a, w) }}",
    "AveragePool": f"{PLANE} y = AveragePool <{WIDE}> (a) }}",
    "MaxPool": f"{PLANE} y = MaxPool <{WIDE}> (a) }}",
    "MaxPool with places": f"{PLANE} y, z = MaxPool <{WIDE}> (a) }}",
    "LpPool": f"{PLANE} y = LpPool <{WIDE}> (a) }}",
    "LRN": "<int64[4] s = {1, 2000, 60, 60}> { a = ConstantOfShape(s) y = LRN <size = 1000> (a) }",
    "Resize": "<int64[4] s = {1, 1, 1, 5000}, int64[4] t = {1, 1, 20000000, 1}> { a = ConstantOfShape(s)"
    ' y = Resize <mode = "cubic"> (a, , , t) }',
    "Resize to nothing": "<int64[4] s = {1, 1, 4, 4}, int64[4] t = {1, 0, 400000000, 4}> { a = ConstantOfShape(s)"
    ' y = Resize <mode = "linear"> (a, , , t) }',
    "MatMul": "<int64[2] s = {5000, 5000}> { a = ConstantOfShape(s) y = MatMul(a, a) }",
    "Gemm": "<int64[2] s = {5000, 5000}> { a = ConstantOfShape(s) y = Gemm(a, a) }",
    "Einsum": '<int64[2] s = {300, 300}> { a = ConstantOfShape(s) y = Einsum <equation = "ij,kl,mn->ikm"> (a, a, a) }',
    "NonMaxSuppression": "<int64[3] s = {1, 30000, 4}, int64[3] t = {1, 1, 30000}, int64 m = {30000}>"
    " { a = ConstantOfShape(s) b = ConstantOfShape(t) y = NonMaxSuppression(a, b, m) }",
    "GridSample": "<int64[6] s = {1, 1, 4, 4, 4, 4}, int64[6] t = {1, 30, 30, 30, 30, 4}> { a = ConstantOfShape(s)"
    ' b = ConstantOfShape(t) y = GridSample <mode = "cubic"> (a, b) }',
    "RoiAlign": "<int64[4] s = {1, 1, 50, 50}, int64[2] t = {1, 4}, int64[1] u = {1}> { a = ConstantOfShape(s)"
    " b = ConstantOfShape(t) c = ConstantOfShape <value = int64[1] {0}> (u)"
    " y = RoiAlign <output_height = 50, output_width = 50, sampling_ratio = 100> (a, b, c) }",
    "LSTM": "<int64[3] s = {20000, 1, 4}, int64[3] t = {1, 64, 4}, int64[3] u = {1, 64, 16}> { a = ConstantOfShape(s)"
    " w = ConstantOfShape(t) r = ConstantOfShape(u) y = LSTM <hidden_size = 16> (a, w, r) }",
    "Neg": f"{LONG} y = Neg(a) }}",
    "CumSum": f"{LONG} k = Constant <value_int = 0> () y = CumSum(a, k) }}",
    "Range": "<int64 a = {0}, int64 b = {400000000}, int64 c = {1}> { y = Range(a, b, c) }",
    "Tile": "<float[1] a = {1}, int64[1] s = {400000000}> { y = Tile(a, s) }",
    "Expand": "<float[1] a = {1}, int64[2] s = {40000, 10000}> { y = Expand(a, s) }",
    "EyeLike": "<int64[2] s = {20000, 20000}> { a = ConstantOfShape(s) y = EyeLike(a) }",
    "OneHot": "<int64[1] s = {20000}, int64 d = {20000}, float[2] v = {0, 1}> { a = ConstantOfShape(s)"
    " y = OneHot(a, d, v) }",
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_operations_on_constants_are_left_to_run_time(name):
    data = parse(f"g () => ({'float' if name not in ('Range',) else 'int64'}[] y) {COSTLY[name]}", 18)
    start = time.process_time()
    tracemalloc.start()
    try:
        assert not _ready(data.SerializeToString())
        assert tracemalloc.get_traced_memory()[1] < 600e6
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("name", sorted(CASES.keys() - OWN))
def test_what_is_left_to_run_time_is_right(name, monkeypatch):
    """Every operator of constants, computed when a network is made ready and when it runs."""
    for case in drawn(CASES[name], 1):
        model, _ = one_node(name, case.arrays, case.outputs, fixed=range(len(case.arrays)), **case.attributes)
        with monkeypatch.context() as patched, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folded = cpuconv.compile(model, strategy="heuristic").run({})
            patched.setattr(folding, "MAX_OPERATIONS", -1)
            patched.setattr(folding, "PER_ELEMENT", 0)
            left = cpuconv.compile(model, strategy="heuristic").run({})
        for output, expected in folded.items():
            close(left[output], expected, 1e-4)


def test_a_large_model_folds_more():
    node = read(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")).nodes[0]
    value = type("Huge", (), {"concrete": True, "shape": (folding.MAX_OPERATIONS,)})()
    assert not folding.Folding().allows(node, [value], [value])
    assert folding.Folding([np.empty(1 << 22, np.int8)]).allows(node, [value], [value])


# --- others ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [9, 100, 2000])
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_many_operands_are_right(op, count):
    """More than kernels take, some of which broadcast."""
    names = [f"x{at}" for at in range(count)]
    text = ", ".join(f"float[{1 + at % 2},3] {name}" for at, name in enumerate(names))
    feed = {name: np.float32([[at, -at, 1]] * (1 + at % 2)) / count for at, name in enumerate(names)}
    result = cpuconv.compile(parse(f"g ({text}) => (float[] y) {{ y = {op}({', '.join(names)}) }}")).run(feed)["y"]
    exact = np.stack([np.broadcast_to(array, (2, 3)).astype(np.float64) for array in feed.values()])
    close(result, getattr(exact, op.lower())(0).astype(np.float32))


def _doubled(count: int) -> list[list[Any]]:
    return [["operand", 0], *(["mul", at, at] for at in range(count))]


def _nested(count: int) -> list[list[Any]]:
    return [["operand", 0], *(["neg", at] for at in range(count))]


@pytest.mark.parametrize("rows", [_doubled, _nested])
@pytest.mark.parametrize("count", [1000, 50_000])
def test_expressions_of_saved_models_are_bounded(rows: Callable[[int], list[list[Any]]], count):
    stated = rows(count)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="an expression is too long"):
            _expression_from_plain(stated)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("padding", [2**31, (2**31, 0), (0, 2**31), 2**62, 10**30])
@pytest.mark.parametrize("stride", [1, 2**31])
def test_padding_that_no_image_has_is_refused(padding, stride):
    x, w = np.ones((1, 1, 8, 8), np.float32), np.ones((1, 1, 3, 3), np.float32)
    with pytest.raises(ArgumentError, match="Argument 'padding' must be no more than 16,777,216 on a side"):
        cpuconv.conv2d(x, w, padding=padding, stride=stride)


def test_a_long_message_keeps_its_ends():
    error = SourceError(f"g: the node {'n' * 10_000!r} reads {'m' * 10_000!r}, which nothing defines")
    assert len(str(error)) < 400
    assert str(error).startswith("g: the node 'nnn") and str(error).endswith("which nothing defines")
    assert len(str(SourceError("a, " * 10_000))) == MAX_MESSAGE
