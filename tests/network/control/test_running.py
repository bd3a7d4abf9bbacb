"""Control flow in saved models, in reports, on several threads, with stops, and with what fails."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import cpuconv
from cpuconv.errors import RunStopped, SourceError
from cpuconv.network.control.turns import Turns
from support.graph.flow import same
from support.graphs import parse, programs_of

X = np.float32([1, -2, 3])
BODY = """b (int64 i, bool c, float[N] a) => (bool d, float[N] e, float[N] w) {
    d = Identity(c) e = Add(a, x) p = If (c) <
        then_branch = t () => (float[N] q) { q = Mul(e, k) }, else_branch = f () => (float[N] q) { q = Neg(e) }>
    w = Sub(p, a) }"""
LOOP = (
    f"g (float[N] x, int64 n) => (float[N] y, float[M,N] z) <float k = {{2}}> {{ y, z = Loop<body = {BODY}>(n, , x) }}"
)
PLAIN = """g (float[3] x, int64 n) => (float[3] y) {
    y = Loop<body = b (int64 i, bool c, float[3] a) => (bool c, float[3] e) { e = Add(a, x) }>(n, , x) }"""
SCAN = """g (float[2] s, float[N,2] x) => (float[2] y, float[2,N] z) <float[2] k = {2, 3}> {
    y, z = Scan<num_scan_inputs = 1, scan_output_axes = [-1], scan_input_directions = [1],
        body = b (float[2] a, float[2] v) => (float[2] e, float[2] w) { e = Add(a, v) w = Mul(e, k) }>(s, x)
}"""


def _compiled(text: str, **options: Any) -> cpuconv.Model:
    return cpuconv.compile(parse(text), strategy="heuristic", **options)


def _right(x: np.ndarray, n: int) -> dict[str, np.ndarray]:
    """What `LOOP` gives."""
    rows = [(2 * (t + 2) - (t + 1)) * x for t in range(n)]
    return {"y": (n + 1) * x, "z": np.array(rows, np.float32).reshape(n, *x.shape)}


# --- saved models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("shapes", [{}, {"x": (3,)}])
def test_saved_models_have_loops(tmp_path: Path, shapes: dict[str, Any], kernels: bool) -> None:
    made = _compiled(LOOP, input_shapes=shapes)
    same(made.run({"x": X, "n": np.array(4)}), _right(X, 4))
    made.save(tmp_path / "m.cpuconv", kernels=kernels)
    loaded = cpuconv.load(tmp_path / "m.cpuconv", trust_kernels=kernels)
    for n in (4, 0, 7):
        same(loaded.run({"x": X, "n": np.array(n)}), _right(X, n))
    if not shapes:
        same(loaded.run({"x": np.ones(5, np.float32), "n": np.array(2)}), _right(np.ones(5, np.float32), 2))
    loaded.save(tmp_path / "again.cpuconv")
    same(cpuconv.load(tmp_path / "again.cpuconv").run({"x": X, "n": np.array(2)}), _right(X, 2))


def test_saved_models_have_scans(tmp_path: Path) -> None:
    made = _compiled(SCAN)
    feed = {"s": np.float32([1, 2]), "x": np.arange(8, dtype=np.float32).reshape(4, 2)}
    right = made.run(feed)
    made.save(tmp_path / "m.cpuconv")
    same(cpuconv.load(tmp_path / "m.cpuconv").run(feed), right)


@pytest.mark.parametrize("change", ["carried", "inputs", "body", "axes"])
def test_a_saved_node_that_does_not_fit_its_body_is_refused(tmp_path: Path, change: str) -> None:
    from support.damage.mutations import header_of, with_header

    _compiled(SCAN if change == "axes" else LOOP).save(tmp_path / "m.cpuconv")
    data = (tmp_path / "m.cpuconv").read_bytes()
    header = header_of(data)
    node = next(node for node in header["graph"]["nodes"] if node[0] in ("Loop", "Scan"))
    if change == "carried":
        node[3]["carried"] = 7
    elif change == "inputs":
        node[1] = node[1][:-1]
    elif change == "body":
        node[3]["body"] = 3
    else:
        node[3]["output_axes"] = ["x"]
    (tmp_path / "m.cpuconv").write_bytes(with_header(data, header))
    with pytest.raises(SourceError, match=r"m\.cpuconv cannot be read: (Loop|Scan) node 'y'"):
        cpuconv.load(tmp_path / "m.cpuconv")


# --- reports --------------------------------------------------------------------------------------------------------


def test_reports_name_the_operators_of_bodies() -> None:
    made = _compiled(LOOP, input_shapes={"x": (3,)})
    (row,) = made.explain().operators
    assert (row.name, row.op, row.algorithm) == ("y", "Loop", "body: Identity, Add, If, Sub")
    assert "evaluator" not in str(made.explain())
    (timed,) = made.profile({"x": X, "n": np.array(3)}, 2).rows
    assert (timed.name, timed.op, timed.algorithm) == (
        "y",
        "Loop",
        "body: Identity, Add, If, Sub",
    ) and timed.seconds > 0
    text = """g (float[3] x, bool c) => (float[3] y) { z = Not(c) w = And(z, c) y = If (w) <
        then_branch = t () => (float[3] a) { b = Relu(x) a = Add(b, b) },
        else_branch = e () => (float[3] a) { a = Neg(x) }> }"""
    (row,) = [
        row
        for row in _compiled(text.replace("bool c", "float s").replace("z =", "c = Cast<to = 9>(s) z ="))
        .explain()
        .operators
        if row.op == "If"
    ]
    assert row.algorithm == "then: Relu, Add; else: Neg"


def test_operators_without_kernels_in_bodies_are_told_and_refused_as_others() -> None:
    body = "b (int64 i, bool c, float[3] a) => (bool c, float[3] e)"
    body += " { e = ai.onnx.ml.Scaler<offset = [0.0], scale = [2.0]>(a) }"
    text = f"g (float[3] x, int64 n) => (float[3] y) {{ y = Loop<body = {body}>(n, , x) }}"
    model = parse(text)
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    with pytest.warns(cpuconv.CpuconvWarning, match="Scaler run through") as told:
        made = cpuconv.compile(model, strategy="heuristic")
    assert len(told) == 1
    same(made.run({"x": X, "n": np.array(3)}), {"y": 8 * X})
    with pytest.raises(SourceError, match="has operators without kernels: Scaler"):
        cpuconv.compile(model, strict=True)
    assert _compiled(LOOP, strict=True)


# --- several callers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_several_callers_at_once(threads: int) -> None:
    made = _compiled(LOOP, threads=threads)
    wrong: list[BaseException] = []
    results = []

    def go(number: int) -> None:
        try:
            for turn in range(12):
                x = np.float32([number, turn, 1, 2])[: 2 + number % 3]
                n = (number + 5 * turn) % 23
                got = made.run({"x": x, "n": np.array(n)})
                results.append((got, x, n))
                same(got, _right(x, n))
        except BaseException as error:
            wrong.append(error)

    callers = [threading.Thread(target=go, args=(number,)) for number in range(8)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong
    for got, x, n in results:  # nothing was written to after it was handed out
        same(got, _right(x, n))


def test_results_are_nobody_else_s() -> None:
    made = _compiled(LOOP)
    feed = {"x": X.copy(), "n": np.array(0)}
    first = made.run(feed)
    assert not np.shares_memory(first["y"], feed["x"])
    feed["n"] = np.array(5)
    second = made.run(feed)
    kept = {name: array.copy() for name, array in second.items()}
    assert not np.shares_memory(second["y"], second["z"])
    made.run({"x": 7 * X, "n": np.array(9)})
    same(second, kept)


def test_memory_of_runs_is_counted_and_taken_again() -> None:
    made = _compiled(LOOP)
    for _ in range(3):
        made.run({"x": X, "n": np.array(50)})
    before = made.nbytes
    for _ in range(20):
        made.run({"x": X, "n": np.array(50)})
    assert made.nbytes == before > 0


# --- carried values --------------------------------------------------------------------------------------------------


def test_carried_values_trade_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    run = Turns.run
    monkeypatch.setattr(Turns, "run", lambda self, turn, stop: (run(self, turn, stop), seen.append(id(self.inputs[2]))))
    body = "b (int64 i, bool c, float[3] a) => (bool c, float[3] e) { e = Add(a, x) }"
    made = _compiled(f"g (float[3] x, int64 n) => (float[3] y) {{ y = Loop<body = {body}>(n, , x) }}")
    made.run({"x": X, "n": np.array(20)})
    assert len(set(seen)) == 2 and seen[::2] == [seen[0]] * 10


def test_programs_of_bodies_are_made_once() -> None:
    made = _compiled(LOOP)
    made.run({"x": X, "n": np.array(3)})
    bodies = list(programs_of(made).builder.bodies._made.values())
    (programs,) = (each for body in bodies for each in body.programs)
    assert len(programs) == 1
    made.run({"x": np.ones(7, np.float32), "n": np.array(3)})
    assert list(programs_of(made).builder.bodies._made.values()) == bodies and len(programs) == 2


def test_kernels_of_bodies_are_told_with_those_of_the_network() -> None:
    made = _compiled(PLAIN)
    made.run({"x": X, "n": np.array(3)})
    assert any("elementwise" in name for name in programs_of(made).kernels())


def test_weights_that_bodies_read_are_packed_once() -> None:
    body = "b (int64 i, bool c, float[1,64] a) => (bool c, float[1,64] e) { m = MatMul(a, w) e = Tanh(m) }"
    text = f"""g (float[1,64] x, int64 n) => (float[1,64] y, float[1,64] u) {{
        y = Loop<body = {body}>(n, , x) z = MatMul(x, w) u = Tanh(z) }}"""
    w = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
    model = parse(text, w=w)
    made = cpuconv.compile(model, strategy="heuristic", threads=1)
    x = np.ones((1, 64), np.float32)
    got = made.run({"x": x, "n": np.array(1)})
    same(got, {"u": np.tanh(x @ w), "y": np.tanh(x @ w)})
    packed = len(programs_of(made).builder.packed)
    made.run({"x": x, "n": np.array(5)})
    assert len(programs_of(made).builder.packed) == packed == 1


# --- what ends ------------------------------------------------------------------------------------------------------


def test_what_fails_in_a_body_names_node_and_iteration() -> None:
    body = """b (int64 i, bool c, float[3] a, int64[1] s) => (bool c, float[3] e, int64[1] r) <int64[1] one = {1}>
        { v = Reshape(a, s) e = Add(v, x) r = Add(s, one) }"""
    text = f"""g (float[3] x, int64 n) => (float[3] y, int64[1] s) <int64[1] z = {{3}}> {{
        y, s = Loop<body = {body}>(n, , x, z) }}"""
    made = _compiled(text)
    same(made.run({"x": X, "n": np.array(1)}), {"y": 2 * X})
    for _ in range(2):
        with pytest.raises(SourceError, match=r"Loop node 'y': iteration 1: Reshape node 'v'"):
            made.run({"x": X, "n": np.array(5)})
    same(made.run({"x": X, "n": np.array(1)}), {"y": 2 * X})


def test_a_stop_ends_a_loop_in_the_middle() -> None:
    made = _compiled(PLAIN)
    asked = [0]

    def stop() -> bool:
        asked[0] += 1
        return asked[0] > 1000

    with pytest.raises(RunStopped):
        made.run({"x": X, "n": np.array(2**62)}, stop=stop)
    same(made.run({"x": X, "n": np.array(4)}), {"y": 5 * X})


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
def test_an_interrupt_ends_a_loop() -> None:
    made = _compiled(PLAIN)
    made.run({"x": X, "n": np.array(4)})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            made.run({"x": X, "n": np.array(2**62)})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    same(made.run({"x": X, "n": np.array(4)}), {"y": 5 * X})


def test_what_cannot_fit_into_memory_is_refused_at_once() -> None:
    made = _compiled(LOOP)
    with pytest.raises(SourceError, match="Loop node 'y': iteration 0: the scan output 0 needs .* GB of memory"):
        made.run({"x": X, "n": np.array(2**62)})
    same(made.run({"x": X, "n": np.array(4)}), _right(X, 4))


# --- what is refused -------------------------------------------------------------------------------------------------


def _with_body(inputs: list[Any], outputs: list[Any], nodes: list[Any]) -> Any:
    body = helper.make_graph(nodes, "b", inputs, outputs)
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], "loop", body=body)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    n = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    graph = helper.make_graph([node], "g", [x, n], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_I = helper.make_tensor_value_info("i", TensorProto.INT64, [])
_C = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
_A = helper.make_tensor_value_info("a", TensorProto.FLOAT, [3])
_SEQUENCE = helper.make_tensor_sequence_value_info("a", TensorProto.FLOAT, [3])
REFUSED = {
    "a sequence": ([_I, _C, _SEQUENCE], [_C, _SEQUENCE], "the input 'a' must be a tensor of numbers"),
    "too few inputs": ([_I, _C], [_C, _C], "gives its body 3 values, where the body has 2 inputs"),
    "too few outputs": ([_I, _C, _A], [_C], "has 1 outputs where its body has 0"),
    "an unknown value": ([_I, _C, _A], [_C, helper.make_tensor_value_info("q", 1, [3])], "'q'"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_bodies_that_do_not_fit_are_refused(which: str) -> None:
    inputs, outputs, said = REFUSED[which]
    with pytest.raises(SourceError, match=said) as told:
        cpuconv.compile(_with_body(inputs, outputs, []), strategy="heuristic")
    assert "loop" in str(told.value)


def test_an_iteration_takes_little_time() -> None:
    body = "b (int64 i, bool c, float a) => (bool d, float e) { d = Identity(c) e = Add(a, one) }"
    made = _compiled(f"g (float x, int64 n) => (float y) <float one = {{1}}> {{ y = Loop<body = {body}>(n, , x) }}")
    feed = {"x": np.array(0, np.float32), "n": np.array(2000)}
    same(made.run(feed), {"y": np.float32(2000)})
    best = min((-time.perf_counter() + (made.run(feed) and time.perf_counter())) for _ in range(30))
    assert best / 2000 < 40e-6  # some 2 µs on an idle machine
