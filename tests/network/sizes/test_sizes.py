"""A compiled network with open sizes: a program for each size, within a bound on bytes, for many threads at once."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import cpuconv
from cpuconv.network.program_builder import ProgramBuilder
from cpuconv.network.running.packed import Packed
from cpuconv.network.running.recording import context_bytes
from support import oracle
from support.graphs import close, definition_of, normal, parse, programs_of, run
from support.running.callers import at_once

RNG = np.random.default_rng(0)


def _convolutional() -> onnx.ModelProto:
    """Convolution, pooling, convolution; any number and size of images."""
    text = """g (float[N,3,H,W] x) => (float[N,K,P,Q] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w, b)
        r = Relu(a)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
        y = Conv(p, v)
    }"""
    return parse(text, **normal(RNG, {"w": (20, 3, 3, 3), "b": (20,), "v": (5, 20, 1, 1)}))


def _x(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _compiled(model: onnx.ModelProto, **options) -> cpuconv.Model:
    return cpuconv.compile(model, strategy="heuristic", **options)


def _resident() -> int:
    """Bytes of memory that this process occupies."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_thousand_sizes_stay_within_the_bound():
    model = _convolutional()
    made = _compiled(model, threads=oracle.THREADS)
    programs_of(made).resize(3 << 20)
    sizes = [(1 + at % 5, 3, 8 + at // 20, 8 + at // 5 % 4) for at in range(1000)]
    assert len({*sizes}) == 1000
    resident = 0
    for at, shape in enumerate(sizes):
        x = _x(*shape)
        got = made(x)
        if at % 50 == 0:
            close(got, run(model, {"x": x})[0])
        assert made.nbytes <= 3 << 20
        if at == 500:
            resident = _resident()
    assert 0 < len(programs_of(made)) < 500
    assert len(programs_of(made).builder.packed) < 30  # of constants and forms, not of programs
    if os.path.exists("/proc/self/statm"):
        assert _resident() - resident < 64 << 20


def test_the_newest_program_stays_however_large():
    made = _compiled(_convolutional())
    programs_of(made).resize(0)
    first, second = _x(1, 3, 8, 8), _x(1, 3, 9, 8)
    made(first)
    program = weakref.ref(programs_of(made).find((first.shape,)).executable)
    assert programs_of(made).find((first.shape,)).executable is program() and not len(programs_of(made))
    made(second)
    assert program() is None  # at once: nothing refers to itself


def test_programs_used_least_recently_go_first():
    made = _compiled(_convolutional())
    shapes = [(1, 3, 8 + at, 8) for at in range(3)]
    programs = []
    for shape in shapes:
        made(_x(*shape))
        programs.append(weakref.ref(programs_of(made).find((shape,))))
    made(_x(*shapes[0]))
    programs_of(made).resize(made.nbytes - 1)
    assert [program() is not None for program in programs] == [True, False, True]


def test_memory_of_more_callers_counts():
    made = _compiled(_convolutional())
    x = _x(1, 3, 16, 16)
    made(x)
    program = programs_of(made).find((x.shape,)).executable
    before, arenas = program.nbytes, program.arenas.nbytes
    assert arenas == program.run_bytes >= program.memory.arena + program.workspace_bytes
    held = program.contexts.take(program.context), program.arenas.take(100)  # as if another caller were running
    made(x)
    program.contexts.give_back(held[0])
    program.arenas.give_back(held[1])
    assert program.nbytes == before + context_bytes(program.segments) > before
    assert program.arenas.nbytes == 2 * arenas and made.nbytes == program.nbytes + 2 * arenas


def test_packed_constants_are_told_apart_by_content():
    packed = Packed()
    arrays = [np.full((4, 4), value, np.float32) for value in (1, 2, 1)]
    got = [packed.get(array, "form", array.copy) for array in arrays]
    assert got[0] is got[2] and got[0] is not got[1] and len(packed) == 2
    assert packed.get(arrays[0], "another form", arrays[0].copy) is not got[0]
    counted = packed.get(np.arange(4), "form", np.arange(4).copy)
    assert packed.get(np.arange(4).reshape(2, 2), "form", np.arange(4).copy) is not counted
    assert packed.get(np.arange(4), "form", np.arange(4).copy) is counted
    del got, counted
    gc.collect()
    assert not len(packed)


def test_constants_that_follow_from_sizes_have_their_own_forms():
    """The weight is the same constant by name in both programs, and other elements."""
    model = parse("""g (float[1,C,H,8] x, float[1,3,6,8] z) => (float[1,4,P,8] y) {
        shape = Shape<start = 2, end = 3>(x)
        scale = Cast<to = 1>(shape)
        w = Mul(raw, scale)
        y = Conv(z, w)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(_x(4, 3, 1, 1), "raw"))
    made = _compiled(model)
    for height in (2, 5, 2):
        feed = {"x": _x(1, 1, height, 8), "z": _x(1, 3, 6, 8)}
        close(made.run(feed)["y"], run(model, feed)[0])


def test_weights_are_shared_by_programs():
    made = _compiled(_convolutional())
    programs = []
    for side in (20, 32):
        made(_x(1, 3, side, side))
        programs.append(programs_of(made).find(((1, 3, side, side),)).executable)
    first, second = ({id(array) for array in program.constants.values()} for program in programs)
    assert first & second


def test_eight_threads_with_sizes_of_their_own_while_programs_are_forgotten():
    model = _convolutional()
    made = _compiled(model, threads=oracle.THREADS)
    programs_of(made).resize(300_000)
    inputs = [_x(1 + at % 2, 3, 10 + at, 12) for at in range(8)]
    expected = [run(model, {"x": x})[0] for x in inputs]

    def call(at: int) -> None:
        for turn in range(12):
            own = (at + turn // 3) % 8
            np.testing.assert_allclose(made(inputs[own]), expected[own], rtol=1e-4, atol=1e-4)

    at_once(8, call)


def test_compiled_in_one_thread_and_run_in_another():
    model = _convolutional()
    made: list[cpuconv.Model] = []
    thread = threading.Thread(target=lambda: made.append(_compiled(model, threads=oracle.THREADS)))
    thread.start()
    thread.join()
    x = _x(2, 3, 12, 12)
    results: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: results.append(made[0](x)))
    thread.start()
    thread.join()
    close(results[0], run(model, {"x": x})[0])
    np.testing.assert_array_equal(made[0](x), results[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_runs_old_and_new_sizes():
    model = _convolutional()
    made = _compiled(model, threads=oracle.THREADS)
    old, new = _x(1, 3, 12, 12), _x(1, 3, 14, 12)
    expected = [made(old), run(model, {"x": new})[0]]
    child = os.fork()
    if not child:
        alike = all(np.allclose(made(x), y, rtol=1e-4, atol=1e-4) for x, y in zip((old, new), expected, strict=True))
        os._exit(0 if alike else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    close(made(new), expected[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_process_forked_while_another_thread_makes_a_program_makes_its_own(monkeypatch):
    model = _convolutional()
    made, x = _compiled(model, threads=1), _x(1, 3, 12, 12)
    expected = made(x)
    begun, go, build = threading.Event(), threading.Event(), ProgramBuilder.build

    def slow(*arguments, **options):
        begun.set()
        go.wait()
        return build(*arguments, **options)

    monkeypatch.setattr(ProgramBuilder, "build", slow)
    thread = threading.Thread(target=made, args=(_x(1, 3, 14, 12),))
    thread.start()
    begun.wait()  # from now on it holds the model's lock
    child = os.fork()
    if not child:
        signal.alarm(60)
        ProgramBuilder.build = build
        other = _x(1, 3, 13, 12)
        alike = np.array_equal(made(x), expected) and np.allclose(made(other), run(model, {"x": other})[0], atol=1e-4)
        os._exit(0 if alike else 1)
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- networks of which nothing is asked -----------------------------------------------------------------------------


def test_a_batch_of_nothing_gives_empty_outputs():
    model = parse(
        """g (float[N,3,12,10] x) => (float[] y, float[] z, float[] r) {
            a = Conv<pads = [1, 1, 1, 1]>(x, w1)
            b = Relu(a)
            t = ConvTranspose<strides = [2, 2]>(b, w2)
            p = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(t)
            q = AveragePool<kernel_shape = [2, 2]>(p)
            n = InstanceNormalization(q, ones, zeros)
            d = Resize<mode = "linear">(n, , scales)
            y = Concat<axis = 1>(d, d)
            g = GlobalAveragePool(q)
            f = Flatten(g)
            m = Gemm<transB = 1>(f, w3)
            z = Softmax(m)
            s = Transpose<perm = [2, 0, 1]>(columns)
            r, h, c = LSTM<hidden_size = 4>(s, w4, r4)
            columns = ReduceMean<axes = [3], keepdims = 0>(b)
        }"""
    )
    rng = np.random.default_rng(0)
    weights = {"w1": (8, 3, 3, 3), "w2": (8, 6, 3, 3), "w3": (5, 6), "w4": (1, 16, 8), "r4": (1, 16, 4)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    arrays |= {"ones": np.ones(6, np.float32), "zeros": np.zeros(6, np.float32), "scales": np.float32([1, 1, 2, 2])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    made = _compiled(model)
    shapes = {batch: [array.shape for array in made.run({"x": _x(batch, 3, 12, 10)}).values()] for batch in (0, 1, 2)}
    assert shapes[0] == [tuple(size - extra for size, extra in zip(one, (_extra(one, two)), strict=True))
                         for one, two in zip(shapes[1], shapes[2], strict=True)]  # fmt: skip


def _extra(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...]:
    """How much the shape for two images is larger than that for one."""
    return tuple(b - a for a, b in zip(one, two, strict=True))


# --- chains of shapes, as exporters write them ------------------------------------------------------------------------

FLATTEN = """g (float[N,C,H,W] x) => (float[N,M] y) {
    s = Shape(x)
    zero = Constant<value = int64 {0}>()
    axes = Constant<value = int64[1] {0}>()
    n = Gather<axis = 0>(s, zero)
    first = Unsqueeze(n, axes)
    rest = Constant<value = int64[1] {-1}>()
    shape = Concat<axis = 0>(first, rest)
    r = Relu(x)
    y = Reshape(r, shape)
}"""
RESIZE = """g (float[N,C,H,W] x, float[N,D,P,Q] other) => (float[N,C,P,Q] y) {
    sx = Shape(x)
    so = Shape(other)
    zero = Constant<value = int64[1] {0}>()
    two = Constant<value = int64[1] {2}>()
    four = Constant<value = int64[1] {4}>()
    head = Slice(sx, zero, two)
    tail = Slice(so, two, four)
    sizes = Concat<axis = 0>(head, tail)
    y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, , , sizes)
}"""
WINDOWS = """g (float[N,C,H,W] x) => (float[N,C,P,Q] y) {
    s = Shape(x)
    two = Constant<value = int64 {2}>()
    three = Constant<value = int64 {3}>()
    half = Constant<value = int64 {2}>()
    axes = Constant<value = int64[1] {0}>()
    h = Gather<axis = 0>(s, two)
    w = Gather<axis = 0>(s, three)
    hh = Div(h, half)
    ww = Div(w, half)
    hu = Unsqueeze(hh, axes)
    wu = Unsqueeze(ww, axes)
    h2 = Mul(hu, twice)
    w2 = Mul(wu, twice)
    ends = Concat<axis = 0>(h2, w2)
    cut = Slice(x, start, ends, along)
    y = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(cut)
}"""


@pytest.mark.parametrize(
    ("text", "constants", "shapes"),
    [
        (FLATTEN, {}, [{"x": (2, 3, 4, 5)}, {"x": (1, 3, 4, 5)}, {"x": (3, 17, 2, 7)}]),
        (
            RESIZE,
            {},
            [
                {"x": (1, 5, 4, 4), "other": (1, 2, 8, 8)},
                {"x": (2, 17, 4, 6), "other": (2, 3, 9, 11)},
                {"x": (1, 16, 8, 8), "other": (1, 1, 4, 5)},
            ],
        ),
        (
            WINDOWS,
            {"twice": [2], "start": [0, 0], "along": [2, 3]},
            [{"x": (1, 3, 6, 6)}, {"x": (1, 3, 7, 9)}, {"x": (2, 18, 5, 4)}],
        ),
    ],
)
def test_shapes_that_the_network_computes(text, constants, shapes):
    model = parse(text, **{name: np.array(each, np.int64) for name, each in constants.items()})
    made = _compiled(model)
    for sizes in (*shapes, shapes[0]):
        feed = {name: _x(*shape) for name, shape in sizes.items()}
        close(made.run(feed)["y"], run(model, feed)[0])
        assert not {"Shape", "Gather", "Concat"} & {row.op for row in made.explain().operators}


# --- what other sizes leave -------------------------------------------------------------------------------------------


def test_programs_that_are_made_again_give_equal_bits():
    made = _compiled(_convolutional(), threads=oracle.THREADS)
    inputs = [_x(1, 3, side, 24) for side in (24, 26, 31, 90)]
    before = [made(x) for x in inputs]
    programs_of(made).clear()
    for x, y in reversed(list(zip(inputs, before, strict=True))):
        np.testing.assert_array_equal(made(x), y)


def test_sizes_about_as_large_have_the_layouts_of_the_first():
    made = _compiled(_convolutional())
    model, layouts = _convolutional(), set()
    for side in (40, 41, 44, 43):
        x = _x(1, 3, side, 40)
        made(x)
        layouts.add(tuple((row.op, row.layouts) for row in made.explain().operators))
    assert len(layouts) == programs_of(made).builder.choices == 1
    small = _x(1, 3, 4, 4)
    assert made(small).shape == run(model, {"x": small})[0].shape and programs_of(made).builder.choices == 2


def test_weights_are_folded_once_for_all_sizes():
    model = parse("""g (float[N,3,H,W] x) => (float[N,4,P,Q] y) <float[1,4,1,1] half = {0.5, 2, 1, 4}> {
        a = Conv(x, w)
        b = Mul(a, half)
        y = Relu(b)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(_x(4, 3, 3, 3), "w"))
    made = _compiled(model)
    for side in (5, 8):
        x = _x(2, 3, side, 6)
        close(made(x), run(model, {"x": x})[0])
    assert "Mul" not in {node.op for node in definition_of(made).graph.nodes}
    assert ("weights", "1 Mul into Conv") in made.explain().summary
    assert not definition_of(made).graph.constants.keys() & {"half"}
    kept = _compiled(model, skip_passes=["weights"])
    close(kept(x), run(model, {"x": x})[0])
    assert "Mul" in {node.op for node in definition_of(kept).graph.nodes}


def test_threads_with_elements_that_decide_sizes():
    """Eight at once, each with a shape of its own, while programs are forgotten."""
    graph = parse("g (float[24] x, int64[2] s) => (float[A,B] y) { r = Relu(x) y = Reshape(r, s) }")
    made = _compiled(graph, threads=oracle.THREADS)
    programs_of(made).resize(40_000)
    shapes = [(1, 24), (2, 12), (3, 8), (4, 6), (6, 4), (8, 3), (12, 2), (24, 1)]
    x = _x(24)

    def call(at: int) -> None:
        for turn in range(12):
            shape = shapes[(at + turn // 3) % 8]
            y = made.run({"x": x, "s": np.array(shape)})["y"]
            assert y.shape == shape
            np.testing.assert_array_equal(y.ravel(), np.maximum(x, 0))

    at_once(8, call)
    assert made.nbytes <= 40_000
