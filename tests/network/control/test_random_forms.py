"""Loops and scans of random forms, against plain Python."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import cpuconv
from support.graph.flow import same

X, K = np.float32([1, -2]), np.float32([0.5, 3])
SOURCES = st.sampled_from(["x", "k", "state", "sum", "product", "identity", "repeat"])
VECTOR, NUMBER, FLAG = (TensorProto.FLOAT, [2]), (TensorProto.INT64, []), (TensorProto.BOOL, [])


class Made:
    """The nodes of a body, with what each output is in Python."""

    def __init__(self, states: int, extra: list[str]) -> None:
        self.states, self.extra = states, extra
        self.nodes: list[Any] = []
        self.names: list[str] = []
        self.functions: list[Any] = []

    def add(self, source: str, a: int, b: int) -> None:
        """One more output."""
        a, b = a % self.states, b % self.states
        name = f"o{len(self.names)}"
        known = {f"s{k}": (lambda env, k=k: env[f"s{k}"]) for k in range(self.states)}
        last = self.extra[-1] if self.extra else "x"
        if source in ("x", "k"):
            self._keep(source, lambda env: env[source])
        elif source == "state":
            self._keep(f"s{a}", known[f"s{a}"])
        elif source == "repeat" and self.names:
            at = a % len(self.names)
            self._keep(self.names[at], self.functions[at])
        elif source == "identity":
            self.nodes.append(helper.make_node("Identity", [f"s{a}"], [name]))
            self._keep(name, known[f"s{a}"])
        elif source == "sum":
            self.nodes.append(helper.make_node("Add", [f"s{a}", last], [name]))
            self._keep(name, lambda env: env[f"s{a}"] + env[last])
        else:
            self.nodes.append(helper.make_node("Mul", [f"s{a}", f"s{b}"], [name]))
            self._keep(name, lambda env: env[f"s{a}"] * env[f"s{b}"])

    def _keep(self, name: str, function: Any) -> None:
        self.names.append(name)
        self.functions.append(function)


OUTPUTS = st.lists(st.tuples(SOURCES, st.integers(0, 9), st.integers(0, 9)), min_size=0, max_size=3)


def _infos(names: list[str], kind: tuple[int, Any]) -> list[Any]:
    return [helper.make_tensor_value_info(name, *kind) for name in names]


def _model(node: Any, inputs: list[Any], outputs: list[str]) -> cpuconv.Model:
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info(name, 1, None) for name in outputs],
        [numpy_helper.from_array(K, "k")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return cpuconv.compile(model, strategy="heuristic", threads=1)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.data())
def test_loops(states: int, data: Any) -> None:
    body = Made(states, [])
    for _ in range(states):
        body.add(*data.draw(st.tuples(SOURCES, st.integers(0, 9), st.integers(0, 9))))
    for each in data.draw(OUTPUTS):
        body.add(*each)
    rows = len(body.names) - states
    kind = data.draw(st.sampled_from(["given", "constant", "computed"]))
    condition = "c" if kind == "given" else "yes" if kind == "constant" else "goes"
    constants = [numpy_helper.from_array(np.array(True), "yes")] if kind == "constant" else []
    if kind == "computed":
        body.nodes.append(helper.make_node("Less", ["i", "m"], ["goes"]))
    graph = helper.make_graph(
        body.nodes, "b",
        [*_infos(["i"], NUMBER), *_infos(["c"], FLAG), *_infos([f"s{k}" for k in range(states)], VECTOR)],
        [*_infos([condition], FLAG), *_infos(body.names, VECTOR)], constants,
    )  # fmt: skip
    trips = data.draw(st.booleans()) or kind != "computed"
    start = data.draw(st.sampled_from(["", "go"]))
    names = [f"y{k}" for k in range(len(body.names))]
    node = helper.make_node("Loop", ["n" if trips else "", start, *["x"] * states], names, body=graph)
    ends = {"x": VECTOR, "n": NUMBER, "m": NUMBER, "go": FLAG}
    read = {"x", *(["n"] if trips else []), *([start] if start else []), *(["m"] if kind == "computed" else [])}
    made = _model(node, [helper.make_tensor_value_info(name, *ends[name]) for name in ends if name in read], names)
    for n, m, go in data.draw(
        st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 4), st.booleans()), min_size=1, max_size=3)
    ):
        feed = {"x": X, "n": np.array(n), "m": np.array(m), "go": np.array(go)}
        env = {"x": X, "k": K} | {f"s{k}": X for k in range(states)}
        stacks: list[list[np.ndarray]] = [[] for _ in range(rows)]
        goes_on = go if start else True
        for turn in itertools.count():
            if (trips and turn >= n) or not goes_on:
                break
            results = [function(env) for function in body.functions]
            env |= {f"s{k}": results[k] for k in range(states)}
            for stack, row in zip(stacks, results[states:], strict=True):
                stack.append(row)
            goes_on = turn < m if kind == "computed" else goes_on
        right = [env[f"s{k}"] for k in range(states)]
        right += [np.array(stack, np.float32).reshape(len(stack), 2) for stack in stacks]
        same(made.run({name: feed[name] for name in read}), dict(zip(names, right, strict=True)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.data())
def test_scans(states: int, scanned: int, data: Any) -> None:
    extra = [f"v{k}" for k in range(scanned)]
    body = Made(states, extra)
    for _ in range(states):
        body.add(*data.draw(st.tuples(SOURCES, st.integers(0, 9), st.integers(0, 9))))
    for each in data.draw(OUTPUTS):
        body.add(*each)
    rows = len(body.names) - states
    graph = helper.make_graph(
        body.nodes, "b", _infos([*(f"s{k}" for k in range(states)), *extra], VECTOR), _infos(body.names, VECTOR)
    )
    axes = data.draw(st.lists(st.sampled_from([0, 1, -1, -2]), min_size=scanned, max_size=scanned))
    ways = data.draw(st.lists(st.integers(0, 1), min_size=scanned, max_size=scanned))
    outer = data.draw(st.lists(st.sampled_from([0, 1, -1, -2]), min_size=rows, max_size=rows))
    turned = data.draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows))
    names = [f"y{k}" for k in range(len(body.names))]
    stated = {"scan_output_axes": outer, "scan_output_directions": turned} if rows else {}
    node = helper.make_node(
        "Scan", [*["x"] * states, *(f"u{k}" for k in range(scanned))], names, body=graph, num_scan_inputs=scanned,
        scan_input_axes=axes, scan_input_directions=ways, **stated,
    )  # fmt: skip
    shapes = [["N", 2] if axis in (0, -2) else [2, "N"] for axis in axes]
    inputs = [helper.make_tensor_value_info(f"u{k}", 1, shape) for k, shape in enumerate(shapes)]
    made = _model(node, [*_infos(["x"], VECTOR), *inputs], names)
    for length in data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)):
        plain = [np.arange(2 * length, dtype=np.float32).reshape(length, 2) + k for k in range(scanned)]
        feed = {"x": X} | {
            f"u{k}": np.ascontiguousarray(array if axes[k] in (0, -2) else array.T) for k, array in enumerate(plain)
        }
        env = {"x": X, "k": K} | {f"s{k}": X for k in range(states)}
        stacks: list[list[np.ndarray]] = [[] for _ in range(rows)]
        for turn in range(length):
            env |= {f"v{k}": array[-1 - turn if ways[k] else turn] for k, array in enumerate(plain)}
            results = [function(env) for function in body.functions]
            env |= {f"s{k}": results[k] for k in range(states)}
            for stack, row in zip(stacks, results[states:], strict=True):
                stack.append(row)
        right = [env[f"s{k}"] for k in range(states)]
        for stack, axis, backwards in zip(stacks, outer, turned, strict=True):
            array = np.array(stack[::-1] if backwards else stack, np.float32).reshape(length, 2)
            right.append(np.moveaxis(array, 0, axis))
        same(made.run(feed), dict(zip(names, right, strict=True)))
