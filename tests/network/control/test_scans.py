"""Scan in all its forms, against ONNX Runtime and values that were computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
from cpuconv.errors import SourceError
from support.graph.flow import agrees, by_runtime, same
from support.graphs import parse

pytest.importorskip("onnxruntime")

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
