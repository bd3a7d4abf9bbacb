"""If, Loop and Scan in all their forms, against ONNX Runtime and values that were computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import SourceError
from support.graph.flow import agrees, arrays, by_runtime, same
from support.graphs import parse, programs_of

pytest.importorskip("onnxruntime")

X = np.float32([1, -2, 3])
ADD = """b (int64 i, bool c, float[3] a) => (bool d, float[3] e, float[3] w)
    { d = Identity(c) e = Add(a, x) w = Mul(e, a) }"""


def _counted(inputs: str, node: str, body: str = ADD) -> str:
    return f"g ({inputs}) => (float[3] y, float[N,3] z) {{ y, z = Loop<body = {body}>({node}) }}"


# --- Loop -----------------------------------------------------------------------------------------------------------


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


# --- Scan -----------------------------------------------------------------------------------------------------------

SCAN = """g (float[2] s, float[{sizes}] x) => (float[2] y, {outputs}) {{
    y, z = Scan<num_scan_inputs = 1{attributes}, body = b (float[2] a, float[2] v) => (float[2] e, float[2] w)
        {{ e = Add(a, v) w = Mul(e, v) }}>(s, x)
}}"""


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize(("axis", "output"), [(0, 0), (1, 0), (-1, 1), (0, -1), (-2, -2)])
def test_axes_and_directions_of_a_scan(axis: int, output: int, backwards: int, turned: int) -> None:
    attributes = f", scan_input_axes = [{axis}], scan_output_axes = [{output}]"
    attributes += f", scan_input_directions = [{backwards}], scan_output_directions = [{turned}]"
    text = SCAN.format(sizes="5,2" if axis in (0, -2) else "2,5", outputs="float[A,B] z", attributes=attributes)
    x = np.arange(10, dtype=np.float32).reshape((5, 2) if axis in (0, -2) else (2, 5))
    agrees(text, {"s": np.float32([1, 2]), "x": x})


def test_lengths_of_a_scan_that_are_open() -> None:
    text = SCAN.format(sizes="N,2", outputs="float[N,2] z", attributes="")
    model = parse(text)
    made = cpuconv.compile(model, strategy="heuristic")
    for length in (3, 1, 40, 0):
        feed = {"s": np.float32([1, 2]), "x": np.ones((length, 2), np.float32)}
        if length:
            same(made.run(feed), by_runtime(model, feed))
        else:
            same(made.run(feed), {"y": feed["s"], "z": np.zeros((0, 2), np.float32)})


def test_any_number_of_states_and_inputs_and_more_outputs_than_inputs() -> None:
    body = """b (float[2] a, int64 k, float[2] v, float[3] u) =>
        (float[2] e, int64 j, float[2] w, float[3] p, float[2] f)
        <int64 one = {1}> { e = Add(a, v) f = Identity(e) j = Add(k, one) w = Mul(v, v) p = Neg(u) }"""
    text = f"""g (float[2] s, int64 k, float[N,2] x, float[3,N] u) =>
        (float[2] y, int64 j, float[N,2] w, float[N,3] p, float[N,2] e) {{
        y, j, w, p, e = Scan<num_scan_inputs = 2, scan_input_axes = [0, 1], body = {body}>(s, k, x, u) }}"""
    feed = {"s": np.float32([1, 2]), "k": np.int64(3), "x": np.ones((4, 2), np.float32)}
    agrees(text, {**feed, "u": np.arange(12, dtype=np.float32).reshape(3, 4)})
    body = "b (float[2] v, float u) => (float[2] w, float[2] o) { w = Mul(v, u) o = Identity(v) }"
    text = f"""g (float[4,2] x, float[4] u) => (float[4,2] y, float[4,2] z) {{
        y, z = Scan<num_scan_inputs = 2, body = {body}>(x, u) }}"""
    agrees(text, {"x": np.arange(8, dtype=np.float32).reshape(4, 2), "u": np.float32([1, 2, 3, 4])})


def test_lengths_of_scanned_inputs_must_agree() -> None:
    body = "b (float v, float u) => (float w) { w = Mul(v, u) }"
    text = f"g (float[4] x, float[5] u) => (float[4] y) {{ y = Scan<num_scan_inputs = 2, body = {body}>(x, u) }}"
    with pytest.raises(SourceError, match="Scan node 'y' must scan inputs of one length, not of 4, 5"):
        cpuconv.compile(parse(text), strategy="heuristic")


EIGHT = """g ({lengths}float[3,2] s, float[3,4,2] x) => (float[3,2] y, float[3,4,2] z) {{
    y, z = Scan<num_scan_inputs = 1{attributes}, body = b (float[2] a, float[2] v) => (float[2] e, float[2] w)
        {{ e = Add(a, v) w = Mul(e, v) }}>({given}, s, x)
}}"""


@pytest.mark.parametrize("lengths", [None, [4, 4, 4], [1, 4, 3]])
@pytest.mark.parametrize("backwards", [0, 1])
def test_scan_with_a_batch(lengths: list[int] | None, backwards: int) -> None:
    text = EIGHT.format(
        lengths="int64[3] l, " if lengths else "", given="l" if lengths else "",
        attributes=f", directions = [{backwards}]",
    )  # fmt: skip
    feed = {"s": np.ones((3, 2), np.float32), "x": np.arange(24, dtype=np.float32).reshape(3, 4, 2)}
    if lengths:
        feed["l"] = np.array(lengths)
    agrees(text, feed, opset=8)


def test_lengths_in_a_batch_must_be_within_it() -> None:
    made = cpuconv.compile(
        parse(EIGHT.format(lengths="int64[3] l, ", given="l", attributes=""), 8), strategy="heuristic"
    )
    feed = {"s": np.ones((3, 2), np.float32), "x": np.ones((3, 4, 2), np.float32), "l": np.array([1, 5, 2])}
    with pytest.raises(
        SourceError, match=r"Scan node 'y' must have 3 lengths of sequences, from 0 to 4, not \[1, 5, 2\]"
    ):
        made.run(feed)
    feed["l"] = np.array([0, 4, 1])
    got = made.run(feed)
    assert (got["y"][0] == 1).all() and not got["z"][0].any() and not got["z"][2, 1:].any()


# --- If -------------------------------------------------------------------------------------------------------------


def _if(then: str, other: str, output: str = "float[] y", inputs: str = "float[3] x, bool c", before: str = "") -> str:
    return f"g ({inputs}) => ({output}) {{ {before} y = If (c) <then_branch = {then}, else_branch = {other}> }}"


BRANCHES = {
    "alike": ("t () => (float[3] a) { a = Relu(x) }", "e () => (float[3] a) { a = Neg(x) }"),
    "other sizes": ("t () => (float[3] a) { a = Relu(x) }", "e () => (float[6] a) { a = Concat<axis = 0>(x, x) }"),
    "other ranks": ("t () => (float[3] a) { a = Relu(x) }", "e () => (float b) { b = ReduceSum<keepdims = 0>(x) }"),
    "constants": (
        "t () => (float[2] k) <float[2] k = {1, 2}> { u = Neg(x) }",
        "e () => (float[3] o) { o = Identity(x) }",
    ),
    "only constants": (
        "t () => (float[2] k) { k = Constant<value = float[2] {1, 2}>() }",
        "e () => (float[2] k) { k = Constant<value = float[2] {3, 4}>() }",
    ),
}


@pytest.mark.parametrize("which", BRANCHES)
@pytest.mark.parametrize("computed", [False, True])
def test_branches(which: str, computed: bool) -> None:
    inputs, before = ("float[3] x, float s", "c = Less(s, s2)") if computed else ("float[3] x, bool c", "")
    text = _if(*BRANCHES[which], inputs=inputs, before=before)
    if computed:
        text = text.replace(") { c", ") <float s2 = {0}> { c", 1)
        feeds = [{"x": X, "s": np.float32(s)} for s in (-1, 1)]
    else:
        feeds = [{"x": X, "c": c} for c in (True, False)]
    agrees(text, *feeds)


def test_a_branch_that_is_an_outer_value() -> None:
    made = cpuconv.compile(
        parse(_if("t () => (float[3] x) { u = Neg(x) }", "e () => (float[3] a) { a = Neg(x) }")), strategy="heuristic"
    )
    same(made.run({"x": X, "c": np.array(True)}), {"y": X})
    same(made.run({"x": X, "c": np.array(False)}), {"y": -X})


def test_conditions_in_rows_of_one_and_constants() -> None:
    then, other = BRANCHES["other sizes"]
    agrees(_if(then, other, inputs="float[3] x, bool[1] c"), *({"x": X, "c": np.array([c])} for c in (True, False)))
    for value in (0, 1):
        text = _if(then, other, inputs="float[3] x").replace("=> (float[] y)", f"=> (float[] y) <bool c = {{{value}}}>")
        made = agrees(text, {"x": X})
        assert "If" not in {row.op for row in made.explain().operators}


@pytest.mark.parametrize(("given", "said"), [("bool[2]", r"bool\[2\]"), ("float", r"float32\[\]")])
@pytest.mark.parametrize("computed", [False, True])
def test_conditions_must_be_one_bool(given: str, said: str, computed: bool) -> None:
    then, other = BRANCHES["alike"]
    before = "c = Where(q, p, p)" if computed else ""
    inputs = f"float[3] x, {given} p, bool q" if computed else f"float[3] x, {given} c"
    size, dtype = (2, bool) if given == "bool[2]" else ((), np.float32)
    feed = {"x": X, "p" if computed else "c": np.ones(size, dtype)} | ({"q": np.array(True)} if computed else {})
    with pytest.raises(SourceError, match=f"If node 'y': the condition must be one bool, not {said}"):
        cpuconv.compile(parse(_if(then, other, inputs=inputs, before=before)), strategy="heuristic").run(feed)


def test_a_branch_that_no_run_takes_need_not_fit() -> None:
    text = _if(
        "t () => (float[3] a) { a = Relu(x) }",
        "e () => (float[] a) { a = MatMul(x, w) }",
        before="w = Concat<axis = 0>(x, x)",
    )
    made = cpuconv.compile(
        parse(text.replace("bool c", "float s").replace("{ w", "{ c = Greater(s, s) w")), strategy="heuristic"
    )
    with pytest.raises(SourceError, match="If node 'y': its else_branch: MatMul node"):
        made.run({"x": X, "s": np.array(1, np.float32)})


def test_many_feeds_take_few_programs() -> None:
    """What a condition is computed from decides no program."""
    then, other = BRANCHES["alike"]
    text = _if(then, other, inputs="float[3] x", before="s = ReduceSum<keepdims = 0>(x) c = Cast<to = 9>(s)")
    made = cpuconv.compile(parse(text), strategy="heuristic")
    for k in range(5):
        same(made.run({"x": X + k}), {"y": np.maximum(X + k, 0)})
    assert len(programs_of(made)) == 1


@pytest.mark.parametrize(("given", "programs"), [("bool", 2), ("bool[1]", 2), ("bool[3]", 1), ("float[3]", 1)])
def test_conditions_of_which_each_has_a_program(given: str, programs: int) -> None:
    """Those that are computed from one condition alone."""
    then, other = BRANCHES["alike"]
    before = "f = Cast<to = 1>(p) s = ReduceMax<keepdims = 0>(f) c = Cast<to = 9>(s)"
    made = cpuconv.compile(
        parse(_if(then, other, inputs=f"float[3] x, {given} p", before=before)), strategy="heuristic"
    )
    for flag in (True, False, True):
        p = np.full(made.inputs[1].shape or (), flag, made.inputs[1].dtype)
        same(made.run({"x": X, "p": p}), {"y": np.maximum(X, 0) if flag else -X})
    assert len(programs_of(made)) == programs


# --- within one another ----------------------------------------------------------------------------------------------


def test_bodies_within_bodies_read_values_two_levels_up() -> None:
    inner = "b2 (int64 j, bool c2, float[3] b) => (bool c2, float[3] f) { g1 = Add(b, x) h = Mul(g1, k) f = Add(h, a) }"
    body = f"""b (int64 i, bool c, float[3] a) => (bool c, float[3] e, float[3] w) {{
        m = Add(i, n) e = Loop<body = {inner}>(m, , a) w = Identity(e) }}"""
    text = f"""g (float[3] x, int64 n) => (float[3] y, float[N,3] z) <float[3] k = {{0.5, 0.25, 2}}> {{
        y, z = Loop<body = {body}>(n, , x) }}"""
    agrees(text, *({"x": X, "n": np.int64(n)} for n in (0, 1, 2, 3)))


def test_an_if_in_a_scan_in_a_loop() -> None:
    branch = (
        "If (p) <then_branch = t () => (float q) { q = Mul(v, s) }, else_branch = f () => (float r) { r = Sub(v, k) }>"
    )
    scan = f"b2 (float s, float v) => (float s2, float w) {{ p = Less(v, s) w = {branch} s2 = Add(s, w) }}"
    body = f"""b (int64 i, bool c, float a) => (bool c, float e, float[3] w) {{
        e, w = Scan<num_scan_inputs = 1, body = {scan}>(a, x) }}"""
    text = f"""g (float[3] x, float a, int64 n) => (float y, float[N,3] z) <float k = {{0.5}}> {{
        y, z = Loop<body = {body}>(n, , a) }}"""
    agrees(text, *({"x": X, "a": np.float32(a), "n": np.int64(3)} for a in (0, 1, -2)))


# --- types ----------------------------------------------------------------------------------------------------------

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
