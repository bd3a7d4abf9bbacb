"""If in all its forms, and bodies within bodies, against ONNX Runtime and values that were computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import SourceError
from support.graph.flow import agrees, same
from support.graphs import parse, programs_of

pytest.importorskip("onnxruntime")

X = np.float32([1, -2, 3])


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


@pytest.mark.parametrize(
    ("given", "said"),
    [("bool[2]", r"the condition must be one bool, not bool\[2\]"), ("float", "must be bool, not float32")],
)
@pytest.mark.parametrize("computed", [False, True])
def test_conditions_must_be_one_bool(given: str, said: str, computed: bool) -> None:
    then, other = BRANCHES["alike"]
    before = "c = Where(q, p, p)" if computed else ""
    inputs = f"float[3] x, {given} p, bool q" if computed else f"float[3] x, {given} c"
    size, dtype = (2, bool) if given == "bool[2]" else ((), np.float32)
    feed = {"x": X, "p" if computed else "c": np.ones(size, dtype)} | ({"q": np.array(True)} if computed else {})
    with pytest.raises(SourceError, match=f"If node 'y': .*{said}"):
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


NESTED = """g (float[N] x, int64 n, int32[1] m) => (float[] y, float[] z)
    <int64 one = {1}, int64 none = {0}, int32 zero = {0}, float k = {0.5}> {
    c = Less(n, one) s = Neg(x)
    w = If (c) <
        then_branch = t () => (float[] a) { p = Greater(m, zero) q = Exp(s) a = If (p) <
            then_branch = t2 () => (float[] b) { b = Concat<axis = 0>(q, x) },
            else_branch = e2 () => (float[] b) { i = Cast<to = 7>(m) j = Add(i, n) r = Equal(j, none) b = If (r) <
                then_branch = t3 () => (float[] f) { f = Relu(q) }, else_branch = e3 () => (float[] f) { f = Add(q, k) }
            > }
        > },
        else_branch = e () => (float[] a) <float k2 = {3}> { a = Mul(x, k2) }
    >
    y = Sub(w, k)
    z = If (c) <
        then_branch = t4 () => (float[] v) { v = Identity(w) }, else_branch = e4 () => (float[1] v) { v = ReduceMax(x) }
    >
}"""


def test_integers_decide_branches(tmp_path: Path) -> None:
    """Branches change from run to run, and are nested; a branch's program has no If, whatever the integers are."""
    n, m = [2, 0, -1, 0, 0, 7, -1, -5], [0, 1, 1, 0, -2, 1, 0, -2]
    feeds = [
        {"x": X[: 2 + at % 2], "n": np.array(a), "m": np.int32([b])} for at, (a, b) in enumerate(zip(n, m, strict=True))
    ]
    made = agrees(NESTED, *feeds)
    assert "If" not in {row.op for row in made.explain().operators}
    assert len(made._parts()) - 1 == 6
    made.save(tmp_path / "m", kernels=True)
    loaded = cpuconv.load(tmp_path / "m")
    assert not loaded.has_run
    for feed in feeds[:3]:
        same(loaded.run(feed), made.run(feed))
    assert loaded.has_run and 0 < loaded.nbytes < made.nbytes
    assert loaded.profile(feeds[2], 1).to_dict() and str(loaded.explain())


@pytest.mark.parametrize("kind", ["float", "int64[2]", "int64"])
def test_conditions_of_a_model_each(kind: str) -> None:
    """Numbers that differ in each run take two models; floats, rows, and what is computed from them none."""
    then, other = BRANCHES["alike"]
    text = _if(then, other, inputs=f"float[3] x, {kind} n", before="s = ReduceSum<keepdims = 0>(n) c = Less(s, s2)")
    text = text.replace(") { s", f") <{kind.split('[')[0]} s2 = {{3}}> {{ s", 1)
    made = cpuconv.compile(parse(text), strategy="heuristic")
    assert made.outputs[0].shape == (3,)
    for number in range(6):
        n = np.full(made.inputs[1].shape or (), number, made.inputs[1].dtype)
        y = np.empty(3, np.float32)
        made.run({"x": X, "n": n}, {"y": y})
        same({"y": y}, {"y": np.maximum(X, 0) if n.sum() < 3 else -X})
    assert len(made._parts()) == (3 if kind == "int64" else 1)


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


def test_names_that_bodies_define_again() -> None:
    """What a body calls by an outer name is its own, in one branch or both, and as an input of a body."""
    then, other = "t () => (float[3] a) { w = Relu(x) a = Add(w, k) }", "e () => (float[3] a) { a = Mul(w, k) }"
    text = _if(then, other, inputs="float[3] x, float s", before="w = Neg(x) c = Cast<to = 9>(s)")
    text = text.replace(" { w", " <float[3] k = {1, 2, 3}> { w", 1)
    made = cpuconv.compile(parse(text), strategy="heuristic")
    k = np.float32([1, 2, 3])
    same(made.run({"x": X, "s": np.array(1, np.float32)}), {"y": np.maximum(X, 0) + k})
    same(made.run({"x": X, "s": np.array(0, np.float32)}), {"y": -X * k})
    body = "b (int64 n, bool c, float[3] x) => (bool c, float[3] e) { e = Add(x, x) }"
    made = cpuconv.compile(
        parse(f"g (float[3] x, int64 n) => (float[3] y) {{ y = Loop<body = {body}>(n, , x) }}"), strategy="heuristic"
    )
    same(made.run({"x": X, "n": np.array(3)}), {"y": 8 * X})


def test_outputs_that_are_left_out() -> None:
    for outputs, kept in (("y", "y"), ("y, z", "yz"), ("y, , u", "yu")):
        body = "b (int64 i, bool c, float[3] a) => (bool c, float[3] e, float[3] w, int64 j)"
        body += " { e = Add(a, x) w = Neg(e) j = Identity(i) }"
        stated = ", ".join({"y": "float[3] y", "z": "float[N,3] z", "u": "int64[N] u"}[name] for name in kept)
        named = outputs.replace(", ,", ", v,")
        model = parse(f"g (float[3] x, int64 n) => ({stated}) {{ {named} = Loop<body = {body}>(n, , x) }}")
        names = model.graph.node[0].output
        if "v" in names:
            names[list(names).index("v")] = ""
        got = cpuconv.compile(model, strategy="heuristic").run({"x": X, "n": np.array(2)})
        rows = {"y": 3 * X, "z": np.stack([-2 * X, -3 * X]), "u": np.arange(2)}
        same(got, {name: rows[name] for name in kept})


def test_what_follows_a_loop_of_unknown_length() -> None:
    """Small operators by references, and products by programs for the sizes that are found."""
    body = "b (int64 i, bool c, float[3] a) => (bool c, float[3] e, float[3] w) { e = Add(a, x) w = Neg(e) }"
    text = f"""g (float[3] x, int64 n) => (float[N,3] z, float[N,2] p) <float[3,2] m = {{1, 2, 3, 4, 5, 6}}> {{
        y, r = Loop<body = {body}>(n, , x) z = Relu(r) q = MatMul(r, m) p = Add(q, q) }}"""
    agrees(text, *({"x": X, "n": np.int64(n)} for n in (1, 5, 3)))
