"""Loop in all its forms, against ONNX Runtime and values that were computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import SourceError
from support.graph.flow import agrees, arrays, same
from support.graphs import parse

pytest.importorskip("onnxruntime")

X = np.float32([1, -2, 3])
ADD = """b (int64 i, bool c, float[3] a) => (bool d, float[3] e, float[3] w)
    { d = Identity(c) e = Add(a, x) w = Mul(e, a) }"""


def _counted(inputs: str, node: str, body: str = ADD) -> str:
    return f"g ({inputs}) => (float[3] y, float[N,3] z) {{ y, z = Loop<body = {body}>({node}) }}"


@pytest.mark.parametrize("node", ["n, , x", "n, go, x", ", go, x"])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 20, 33])
def test_trip_counts_and_conditions(node: str, turns: int) -> None:
    """Of `turns` iterations, by the trip count or by a condition that the body gives."""
    body = ADD if node[0] == "n" else ADD.replace("d = Identity(c)", "j = Add(i, one) d = Less(j, n)")
    text = _counted("float[3] x, int64 n, bool go", node, body).replace(" { y", " <int64 one = {1}> { y")
    agrees(text, {"x": X, "n": np.int64(turns), "go": turns > 0})
    made = cpuconv.compile(parse(text), strategy="heuristic")
    got = made.run(arrays({"x": X, "n": np.int64(turns), "go": turns > 0}))
    states = [(k + 1) * X for k in range(turns + 1)]
    rows = [states[k + 1] * states[k] for k in range(turns)]
    same(got, {"y": states[-1], "z": np.array(rows, np.float32).reshape(turns, 3)})


def test_neither_trip_count_nor_condition() -> None:
    body = ADD.replace("d = Identity(c)", "d = Less(i, n)")
    agrees(_counted("float[3] x, int64 n", ", , x", body), {"x": X, "n": np.int64(3)}, {"x": X, "n": np.int64(-1)})


def test_negative_trip_counts_and_conditions_that_fail_at_the_start() -> None:
    text = _counted("float[3] x, int64 n, bool go", "n, go, x")
    agrees(text, {"x": X, "n": np.int64(-3), "go": True}, {"x": X, "n": np.int64(3), "go": False})


def test_a_condition_ends_before_the_trip_count_does() -> None:
    body = ADD.replace("d = Identity(c) ", "").replace(
        "(e, a) }", "(e, a) s = ReduceSum<keepdims = 0>(e) d = Less(s, most) }"
    )
    text = _counted("float[3] x, int64 n, float most", "n, , x", body)
    agrees(text, *({"x": X, "n": np.int64(n), "most": np.float32(m)} for n, m in [(9, 7), (9, 99), (2, 7), (0, 0)]))


def test_counts_and_conditions_in_rows_of_one() -> None:
    body = "b (int64[1] i, bool[1] c, float[3] a) => (bool[1] d, float[3] e, int64[1] w) {"
    body += " d = Identity(c) e = Add(a, x) w = Identity(i) }"
    text = f"""g (float[3] x, int64[1] n, bool[1] go) => (float[3] y, int64[N,1] z) {{
        y, z = Loop<body = {body}>(n, go, x) }}"""
    agrees(
        text, {"x": X, "n": np.array([3]), "go": np.array([True])}, {"x": X, "n": np.array([0]), "go": np.array([True])}
    )


@pytest.mark.parametrize("constant", ["n", "go", "n, go"])
@pytest.mark.parametrize(("turns", "go"), [(0, 1), (4, 1), (4, 0)])
def test_constant_counts_and_conditions(constant: str, turns: int, go: int) -> None:
    values = {"n": f"int64 n = {{{turns}}}", "go": f"bool go = {{{go}}}"}
    given = {"n": "int64 n", "go": "bool go"}
    fixed = [values[name] for name in constant.split(", ")]
    free = ["float[3] x", *(given[name] for name in given if name not in constant.split(", "))]
    text = _counted(", ".join(free), "n, go, x").replace(" { y", f" <{', '.join(fixed)}> {{ y")
    feed = {"x": X, "n": np.int64(turns), "go": bool(go)}
    agrees(text, {name: value for name, value in feed.items() if name not in constant.split(", ")})


def test_carried_values_that_trade_places_and_stay() -> None:
    body = """b (int64 i, bool c, float[3] p, float[3] q, float[3] r, float[3] s) =>
        (bool c, float[3] q, float[3] r, float[3] t, float[3] s, float[3] q, float[3] t) { t = Add(p, q) }"""
    text = f"""g (float[3] x, int64 n) =>
        (float[3] p, float[3] q, float[3] r, float[3] s, float[N,3] u, float[N,3] v) {{
        one = Neg(x) p, q, r, s, u, v = Loop<body = {body}>(n, , x, one, x, one) }}"""
    agrees(text, *({"x": X, "n": np.int64(n)} for n in (0, 1, 2, 3, 4, 9)))


def test_outputs_that_are_outer_values_constants_and_the_iteration() -> None:
    """As they are, where ONNX Runtime wants an Identity between."""
    body = """b (int64 i, bool c, float[3] a) => (bool true, float[3] x, float[3] k, int64 i, float[3] a, float[3] x)
        <bool true = {1}, float[3] k = {1, 2, 3}> { unused = Neg(a) }"""
    text = f"""g (float[3] x, int64 n) => (float[3] y, float[N,3] k, int64[N] i, float[N,3] a, float[N,3] o) {{
        start = Abs(x) y, k, i, a, o = Loop<body = {body}>(n, , start) }}"""
    made = cpuconv.compile(parse(text), strategy="heuristic")
    for n in (0, 1, 2, 5, 20):
        first = np.abs(X)[None][: min(n, 1)]
        rows = {"k": np.tile(np.float32([1, 2, 3]), (n, 1)), "i": np.arange(n), "o": np.tile(X, (n, 1))}
        rows["a"] = np.concatenate([first, np.tile(X, (max(n - 1, 0), 1))])
        same(made.run({"x": X, "n": np.array(n)}), {"y": X if n else np.abs(X), **rows})


def test_tensors_without_elements() -> None:
    body = "b (int64 i, bool c, float[N] a) => (bool c, float[N] e, float[N] w) { e = Add(a, x) w = Neg(e) }"
    text = f"g (float[N] x, int64 n) => (float[N] y, float[M,N] z) {{ y, z = Loop<body = {body}>(n, , x) }}"
    agrees(text, *({"x": np.ones(size, np.float32), "n": np.int64(n)} for size, n in ((0, 0), (0, 3), (2, 3))))
    made = cpuconv.compile(parse(text), strategy="heuristic")
    same(made.run({"x": np.ones(2, np.float32), "n": np.array(0)}), {"z": np.zeros((0, 2), np.float32)})


def test_no_carried_values() -> None:
    body = "b (int64 i, bool c) => (bool c, int64 w) { w = Mul(i, i) }"
    model = parse(f"g (int64 n) => (int64[N] y) {{ y = Loop<body = {body}>(n, n) }}")
    model.graph.node[0].input[1] = ""
    made = cpuconv.compile(model, strategy="heuristic")
    for n in (0, 1, 5):
        same(made.run({"n": np.array(n)}), {"y": np.arange(n) ** 2})


def test_carried_values_that_grow() -> None:
    body = """b (int64 i, bool c, float[N] a, int64 k) => (bool c, float[M] e, int64 j)
        { e = Concat<axis = 0>(a, x) j = Size(e) }"""
    text = f"""g (float[3] x, int64 n) => (float[N] y, int64 k) <int64 z = {{0}}> {{
        y, k = Loop<body = {body}>(n, , x, z) }}"""
    agrees(text, *({"x": X, "n": np.int64(n)} for n in (0, 1, 7)))


def test_carried_values_that_change_rank() -> None:
    body = "b (int64 i, bool c, float a) => (bool c, float e) <int64[1] z = {0}> { e = Unsqueeze(a, z) }"
    made = cpuconv.compile(
        parse(f"g (float[3] x, int64 n) => (float y) {{ y = Loop<body = {body}>(n, , x) }}"), strategy="heuristic"
    )
    assert made.run({"x": X, "n": np.array(3)})["y"].shape == (1, 1, 1, 3)
    assert made.run({"x": X, "n": np.array(0)})["y"].shape == (3,)


def test_slices_by_the_iteration_and_what_is_found_in_the_body() -> None:
    body = """b (int64 i, bool c, float[3] a) => (bool c, float[3] e, float[M] w)
        <int64[1] z = {0}, int64[1] one = {1}> {
        s = Unsqueeze(i, z) t = Add(s, one) v = Slice(x, s, t, z) w = Mul(v, v) e = Add(a, v) }"""
    text = f"g (float[3] x, int64 n) => (float[3] y, float[N,1] z) {{ y, z = Loop<body = {body}>(n, , x) }}"
    agrees(text, *({"x": X, "n": np.int64(n)} for n in (0, 1, 3)))
    body = """b (int64 i, bool c, float[3] a) => (bool c, float[3] e, int64 w) {
        p = NonZero(a) w = Size(p) r = Relu(a) e = Sub(r, x) }"""
    text = f"g (float[3] x, int64 n) => (float[3] y, int64[N] z) {{ y, z = Loop<body = {body}>(n, , x) }}"
    agrees(text, *({"x": X, "n": np.int64(n)} for n in (0, 1, 6)))


def test_scan_outputs_of_several_shapes_are_refused() -> None:
    body = (
        "b (int64 i, bool c, float[N] a) => (bool c, float[M] e, float[M] w) { e = Concat<axis = 0>(a, a) w = Neg(e) }"
    )
    made = cpuconv.compile(
        parse(f"g (float[3] x, int64 n) => (float[N] y, float[] z) {{ y, z = Loop<body = {body}>(n, , x) }}"),
        strategy="heuristic",
    )
    assert made.run({"x": X, "n": np.array(1)})["z"].shape == (1, 6)
    said = r"Loop node 'y': iteration 1: the scan output 0 must keep its shape \(6,\), not become \(12,\)"
    with pytest.raises(SourceError, match=said):
        made.run({"x": X, "n": np.array(2)})
    assert made.run({"x": X, "n": np.array(1)})["z"].shape == (1, 6)


TYPES = {"float16": 10, "double": 11, "int8": 3, "uint8": 2, "int32": 6, "int64": 7, "bfloat16": 16}


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    body = f"b (int64 i, bool c, {name}[3] a) => (bool c, {name}[3] e, {name}[3] w) {{ e = Add(a, x) w = Sub(e, x) }}"
    text = f"g ({name}[3] x, int64 n) => ({name}[3] y, {name}[N,3] z) {{ y, z = Loop<body = {body}>(n, , x) }}"
    made = cpuconv.compile(parse(text), strategy="heuristic")
    dtype = made.inputs[0].dtype
    x = np.array([1, 2, 3]).astype(dtype)
    got = made.run({"x": x, "n": np.array(3)})
    assert got["y"].dtype == got["z"].dtype == dtype
    same(
        got,
        {"y": (4 * x.astype(np.float64)).astype(dtype), "z": np.array([[1, 2, 3], [2, 4, 6], [3, 6, 9]]).astype(dtype)},
    )


def test_carried_values_keep_their_type() -> None:
    body = "b (int64 i, bool c, float[3] a) => (bool c, int64[3] e) { e = Cast<to = 7>(a) }"
    text = f"g (float[3] x, int64 n) => (float[3] y) {{ y = Loop<body = {body}>(n, , x) }}"
    with pytest.raises(SourceError, match="Loop node 'y': the carried value 0 must stay of float32, not become int64"):
        cpuconv.compile(parse(text), strategy="heuristic")


def test_matrix_multiplications_and_convolutions() -> None:
    body = """b (int64 i, bool c, float[1,4,6,6] a) => (bool c, float[1,4,6,6] e, float[1,4] w) {
        v = Conv<pads = [1, 1, 1, 1]>(a, k) e = Relu(v) p = GlobalAveragePool(e) f = Flatten(p) w = MatMul(f, m) }"""
    text = f"""g (float[1,4,6,6] x, int64 n) => (float[1,4,6,6] y, float[N,1,4] z)
        <float[4,4,3,3] k = {{{", ".join(str(0.01 * (n % 7)) for n in range(144))}}},
         float[4,4] m = {{{", ".join(str(0.1 * n) for n in range(16))}}}> {{ y, z = Loop<body = {body}>(n, , x) }}"""
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6), dtype=np.float32)
    agrees(text, {"x": x, "n": np.int64(5)}, {"x": x, "n": np.int64(1)})
    agrees(text, {"x": x, "n": np.int64(5)}, threads=2)
