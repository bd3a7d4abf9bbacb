"""Programs of new sizes are evaluated from templates: without lowering, with the results of a program of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

import cpuconv
from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.model import Choice, ranking
from cpuconv.errors import ArgumentError
from cpuconv.graph.ir import Value
from cpuconv.kernels.axis.axis_emitter import LINE_REGISTERS
from cpuconv.kernels.axis.lines import _serving
from cpuconv.network.running import building
from cpuconv.network.running.recording import Recording
from cpuconv.network.selection.layout import lay_out
from cpuconv.network.templating import classes, per_size_node
from cpuconv.network.templating.classes import WORTH_SPLITTING, class_of, finer, loss, representative
from cpuconv.network.templating.representatives import nearest_fitting
from support import oracle
from support.graphs import close, normal, parse, programs_of
from support.random_sizes import Judge
from support.sized_networks import BY_NAME

RNG = np.random.default_rng(0)
TEXT = """g (float[N,3,H,W] x) => (float[N,8] z, float[N,24,R,S] y) {
    a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w)
    b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1], group = 32>(b, d)
    e = HardSwish(c)
    f = Conv(e, p)
    s = Sigmoid(f)
    m = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(s)
    v = AveragePool<kernel_shape = [2, 2], pads = [0, 0, 1, 1]>(m)
    i = Conv<pads = [1, 1, 1, 1]>(v, q)
    k = Add(i, v)
    r = Resize<mode = "nearest">(k, , scales)
    y = Concat<axis = 1>(r)
    l = GlobalAveragePool(k)
    t = Flatten(l)
    u = MatMul(t, o)
    z = Softmax<axis = -1>(u)
}"""
WEIGHTS = {"w": (32, 3, 3, 3), "d": (32, 1, 3, 3), "p": (24, 32, 1, 1), "q": (24, 24, 3, 3), "o": (24, 8)}


def _model() -> onnx.ModelProto:
    weights = {name: array / 4 for name, array in normal(RNG, WEIGHTS).items()}
    return parse(TEXT, **weights, scales=np.array([1, 1, 2, 2], np.float32))


def _feed(*shape: int) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal(shape, np.float32)}


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return _model()


@pytest.mark.parametrize("threads", [1, oracle.THREADS])
def test_sizes_of_a_class_are_not_lowered(model, threads, monkeypatch):
    made = cpuconv.compile(model, threads=threads, strategy="heuristic")
    made.run(_feed(1, 3, 200, 200))
    assert len(programs_of(made).builder._templates) == 1
    monkeypatch.setattr(building.Builder, "__init__", lambda *_: pytest.fail("a network was lowered"))
    monkeypatch.setattr(per_size_node.PerSizeNode, "steps", lambda *_: pytest.fail("a node was lowered"))
    feeds = [_feed(1, 3, high, wide) for high, wide in ((201, 200), (130, 255), (256, 131), (160, 161), (222, 150))]
    results = [made.run(feed) for feed in feeds]
    monkeypatch.undo()
    for feed, found in zip(feeds, results, strict=True):
        fixed = cpuconv.compile(model, threads=threads, strategy="heuristic", input_shapes={"x": feed["x"].shape})
        for name, array in fixed.run(feed).items():
            close(found[name], array, 1e-4)


def test_equal_arrays_give_equal_bits_whatever_ran_before(model):
    feeds = [_feed(1, 3, *size) for size in ((40, 60), (64, 17), (200, 33), (90, 90), (20, 300))]
    made = [cpuconv.compile(model, threads=1, strategy="heuristic") for _ in range(2)]
    first = [made[0].run(feed) for feed in feeds]
    second = [made[1].run(feed) for feed in reversed(feeds)][::-1]
    for one, other in zip(first, second, strict=True):
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])


@pytest.mark.parametrize("threads", [1, oracle.THREADS])
def test_batches_take_few_templates(model, threads):
    made = cpuconv.compile(model, threads=threads, strategy="heuristic")
    images = RNG.standard_normal((64, 3, 20, 24), np.float32)
    whole = made.run({"x": images})
    for count in range(1, 64):
        for name, array in made.run({"x": images[:count]}).items():
            close(array, whole[name][:count], 1e-4)
    assert len(programs_of(made).builder._templates) <= 8


BRANCHES = """g (float[N,32,H,W] x) => (float[N,32,P,Q] y) {
    a = Conv<pads = [1, 1, 1, 1], group = 32>(x, d)
    b = Conv(x, p)
    c = Sigmoid(x)
    e = Sum(a, b, c)
    y = Relu(e)
}"""


def test_branches_that_small_sizes_do_not_share_run_side_by_side():
    """One template serves sizes with and without work for several threads; each call has workspace for all of them."""
    source = parse(BRANCHES, **normal(RNG, {"d": (32, 1, 3, 3), "p": (32, 32, 1, 1)}))
    made = cpuconv.compile(source, threads=oracle.THREADS, strategy="heuristic")
    shapes = ((8, 60, 60), (2, 17, 17), (3, 40, 33), (16, 64, 64), (2, 20, 60))
    feeds = [_feed(n, 32, *plane) for n, *plane in shapes]
    results = [made.run(feed)["y"] for feed in feeds]
    assert len(programs_of(made).builder._templates) == 1
    for feed, found in zip(feeds, results, strict=True):
        fixed = cpuconv.compile(source, threads=1, strategy="heuristic", input_shapes={"x": feed["x"].shape})
        close(found, fixed.run(feed)["y"], 1e-5)


def test_programs_of_templates_are_small_and_share_words(model):
    """A program has its own values of sizes and the argument blocks of its contexts; the rest is its template's."""
    made = cpuconv.compile(model, threads=1, strategy="heuristic")
    feeds = [_feed(1, 3, high, 140) for high in range(130, 190)]
    results = [made.run(feed) for feed in feeds]
    programs = [program for _, program in programs_of(made)._cache.items()]
    assert len(programs) == 60 and sorted(each.nbytes for each in programs)[30] < 24 << 10
    recordings = [part for each in programs for part in each.executable.segments if isinstance(part, Recording)]
    assert len({id(each.words.words) for each in recordings}) <= len(programs_of(made).builder._templates)
    assert max(each.nbytes for each in recordings) < max(each.bound_bytes for each in recordings) / 2
    for each in programs:
        each.executable.release()  # the next run binds the shared words again
    for feed, before in zip(feeds[::20], results[::20], strict=True):
        assert all(np.array_equal(array, before[name]) for name, array in made.run(feed).items())


def test_reports_know_programs_of_templates(model):
    made = cpuconv.compile(model, threads=1, strategy="heuristic")
    feed = _feed(1, 3, 70, 90)
    made.run(_feed(1, 3, 64, 64))
    made.run(feed)
    operators = {row.op for row in made.explain().operators}
    assert {"Conv", "MaxPool", "AveragePool", "Resize"} <= operators
    assert len(made.profile(feed, runs=1).rows) > 5


def test_what_a_template_cannot_follow_is_lowered(model, monkeypatch):
    """A node that needs numbers is lowered for each size; a network that cannot follow has no templates."""
    feeds = [_feed(1, 3, *size) for size in ((70, 90), (100, 65), (81, 120))]
    expected = [cpuconv.compile(model, threads=1, strategy="heuristic").run(feed) for feed in feeds]
    late = _with_late_poolings(monkeypatch)
    made = cpuconv.compile(model, threads=1, strategy="heuristic")
    for feed, right in zip(feeds, expected, strict=True):
        for name, array in made.run(feed).items():
            close(array, right[name], 1e-5)
    assert late
    monkeypatch.setattr(classes, "followed", _refusing)
    plain = cpuconv.compile(model, threads=1, strategy="heuristic")
    for feed, right in zip(feeds, expected, strict=True):
        for name, array in plain.run(feed).items():
            close(array, right[name], 1e-4)
    assert not len(programs_of(plain).builder._templates)


def _refusing(*_: object) -> None:
    raise TypeError("sizes are not followed")


def _with_late_poolings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators of the nodes that are lowered late: those of poolings, which ask for numbers here."""
    from cpuconv.graph import ops

    late: list[str] = []
    lower = ops.TABLE["MaxPool"].lower
    steps = per_size_node.PerSizeNode.steps

    def needing(call):
        hash(call.y.shape)
        return lower(call)

    def noted(self, *rest):
        late.append(self.node.op)
        return steps(self, *rest)

    monkeypatch.setitem(ops.TABLE, "MaxPool", _replaced(ops.TABLE["MaxPool"], needing))
    monkeypatch.setattr(per_size_node.PerSizeNode, "steps", noted)
    return late


def _replaced(op, lower):
    return replace(op, lower=lower)


def test_a_class_is_a_power_of_four_and_of_batches_one_of_16():
    sizes = [1, 2, 4, 5, 16, 17, 64, 65, 256, 257, 1024]
    assert [class_of([(size,)])[0][0] for size in sizes] == [0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    assert [class_of([(size, 9, 9)])[0][0] for size in sizes] == [0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12]
    for size in range(300):
        for shape in ((size,), (size, size, size)):
            of = class_of([shape])
            inputs = [Value((None,) * len(shape))]
            assert class_of(representative(of, inputs)) == of
            half = finer([shape], inputs)
            assert finer(representative(half, inputs), inputs) == half
            assert class_of(representative(half, inputs)) == of
    assert representative(((5, 0),), [Value((8, "N"))]) == ((8, 1),)


DEEP = """g (float[1,64,H,W] x) => (float[1,64,P,Q] y) {
    y = Conv<pads = [1, 1, 1, 1]>(x, w)
}"""


def test_half_a_class_is_a_class_of_its_own_where_the_whole_loses():
    """Whatever ran before; the model is asked, so the sizes are those that it tells apart here, if there are some."""
    model = parse(DEEP, **normal(RNG, {"w": (64, 64, 3, 3)}))
    sizes = [(3, 3), (7, 7), (9, 9), (14, 14), (20, 20), (60, 60)]
    made = [cpuconv.compile(model, threads=1, strategy="heuristic") for _ in range(2)]
    for each, order in zip(made, (sizes, sizes[::-1]), strict=True):
        for high, wide in order:
            each.run({"x": np.ones((1, 64, high, wide), np.float32)})
    one, other = (programs_of(each).builder for each in made)
    assert one._split == other._split and one._split
    for half, split in one._split.items():
        of = class_of(one._representative(half))
        plan = lay_out(one._like(half), one.target, one._represented(of, one.target))
        assert split == (one._may_lose[of] and loss(plan) > WORTH_SPLITTING)


def test_loss_is_that_of_the_model():
    model = parse(DEEP, **normal(RNG, {"w": (64, 64, 3, 3)}))
    builder = programs_of(cpuconv.compile(model, threads=1, strategy="heuristic")).builder
    graph = builder._like(((0, 6, 4, 4),))
    best = lay_out(graph, builder.target)
    assert loss(best) == pytest.approx(1)
    nodes = []
    for each in best.nodes:
        if each.offer is not None and isinstance(detail := each.offer.detail, LayoutCandidate):
            worst = ranking(detail.problem, closed=True)[-1]
            slow = replace(detail, settled=Choice(worst.candidate, "named"))
            each = replace(each, offer=replace(each.offer, detail=slow))
            expected = worst.cost.estimate / detail.seconds
        nodes.append(each)
    assert loss(replace(best, nodes=nodes)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["attention", "recurrent", "int8"])
def test_no_node_is_lowered_for_each_size(name, monkeypatch):
    """Stacks of products, steps of recurrent layers and depthwise convolutions of int8 follow sizes."""
    judge = Judge(BY_NAME[name])
    lowered = per_size_node.PerSizeNode.steps

    def noted(self, *rest):
        assert not {"MatMul", "LSTM", "GRU", "QuantizedConv"} & {self.node.op}
        return lowered(self, *rest)

    monkeypatch.setattr(per_size_node.PerSizeNode, "steps", noted)
    numbers = range(2, 10)
    assert [judge.judge(number, fresh=False) for number in numbers] == ["right"] * len(numbers)
    assert not judge.reordered(numbers)


PICKED = """g (float[N,8,T] x) => (float[N,8,K] y) <int64[1] two = {2}> {
    length = Shape<start = 2>(x)
    half = Div(length, two)
    most, places = TopK(x, half)
    y = Tanh(most)
}"""


def test_references_between_kernels_get_sizes_of_a_run():
    """A constant that a reference reads is computed from sizes."""
    source = parse(PICKED)
    made = cpuconv.compile(source, threads=1, strategy="heuristic")
    for length in (20, 33, 64, 17):
        x = RNG.standard_normal((2, 8, length), np.float32)
        largest = np.sort(x, -1)[..., ::-1][..., : length // 2]
        close(made(x), np.tanh(largest), 1e-5)
    assert len(programs_of(made).builder._templates) == 1


def test_a_class_has_one_number_of_threads(model, monkeypatch):
    """Where threads are chosen, they are chosen once for a class of sizes, which then has templates."""
    made = cpuconv.compile(model, threads="auto", strategy="heuristic")
    first = made.run(_feed(1, 3, 200, 200))
    threads, builder = made.threads, programs_of(made).builder
    assert first and len(builder._threads) == len(builder._templates) == 1
    monkeypatch.setattr(building.Builder, "executable", lambda *_: pytest.fail("a network was lowered"))
    for size in ((201, 200), (160, 255)):
        made.run(_feed(1, 3, *size))
        assert made.threads == threads


def test_a_representative_keeps_what_a_network_states():
    usual, tried = ((8, 56, 56, 56), (8, 56)), []

    def fits(shapes):
        tried.append(shapes)
        (batch, channels, *_), (rows, _) = shapes
        return channels == 32 and batch == rows

    assert nearest_fitting(usual, ((3, 32, 32, 40), (3, 20)), fits) == ((8, 32, 56, 56), (8, 56))
    assert len(tried) < 8
    assert nearest_fitting(usual, usual, lambda shapes: True) == usual


def test_sizes_that_do_not_fit_are_refused_though_a_template_serves_their_class() -> None:
    """Where the graph states a size, and where two inputs share one."""
    text = "g (float[N,3,H,8] x, float[N,1,H,1] s) => (float[N,3,H,8] y) { y = Mul(x, s) }"
    model = cpuconv.compile(parse(text), threads=1)
    for high in (5, 6, 7):
        model.run({"x": np.ones((2, 3, high, 8), np.float32), "s": np.ones((2, 1, high, 1), np.float32)})
    for x, s in (((2, 2, 5, 8), (2, 1, 5, 1)), ((2, 3, 5, 7), (2, 1, 5, 1)), ((2, 3, 5, 8), (2, 1, 6, 1))):
        with pytest.raises(ArgumentError, match="a shape that fits"):
            model.run({"x": np.ones(x, np.float32), "s": np.ones(s, np.float32)})


@pytest.mark.parametrize("op", ["Softmax", "ReduceSum<axes = [1], keepdims = 1>"])
def test_lines_of_all_lengths_are_those_of_a_network_of_one_length(op: str) -> None:
    """To the last bit: kernels that hold a line in registers take lines of their number of vectors alone."""
    model = cpuconv.compile(parse(f"g (float[3,T] x) => (float[3,U] y) {{ y = {op}(x) }}", opset=11), threads=1)
    rng = np.random.default_rng(5)
    for length in range(1, 17 * 16 + 3):
        x = rng.standard_normal((3, length), np.float32)
        fixed = parse(f"g (float[3,{length}] x) => (float[3,U] y) {{ y = {op}(x) }}", opset=11)
        np.testing.assert_array_equal(model(x), cpuconv.compile(fixed, threads=1)(x))


@pytest.mark.parametrize("registers", [(0, *LINE_REGISTERS), (4, 0, 1), (8, 0), (0, 16)])
def test_a_line_takes_no_kernel_that_holds_more_vectors_than_it_has(registers: tuple[int, ...]) -> None:
    """A kernel of `registers` vectors reads as many as there are in lines of its own number of vectors alone."""
    for vectors in range(1, LINE_REGISTERS[-1] + 3):
        exact = next((each for each in LINE_REGISTERS if vectors <= each), 0)
        assert registers[_serving(registers, vectors)] == (exact if exact in registers else 0)
