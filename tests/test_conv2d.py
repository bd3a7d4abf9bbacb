"""conv2d and plan as users call them."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cpuconv
import layouts
from cpuconv import api, reference, select
from cpuconv.arguments import problem_from_arguments
from cpuconv.errors import ArgumentError, ArgumentTypeError, WorkspaceError
from cpuconv.isa import current
from cpuconv.plan import Plan
from cpuconv.problem import ConvProblem
from cpuconv.recipe import Candidate

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
PLANES = [1, 2, 3, 5, 7, 8, 12, 17, 23]
BLOCKED = layouts.blocked(current().lanes).name
LAYOUTS = st.sampled_from(["NCHW", "NCHW", BLOCKED, "NHWC", "NCHW44", "NCHW8c"])
LIMIT = 1e-4


@st.composite
def paddings(draw: Any, stride: tuple[int, int]) -> Any:
    size = st.integers(0, 3)
    names = ["valid", "same_upper", "same_lower"] + ["same"] * (stride == (1, 1))
    return draw(
        st.one_of(
            size,
            st.tuples(size, size),
            st.tuples(st.tuples(size, size), st.tuples(size, size)),
            st.sampled_from(names),
        )
    )


@st.composite
def calls(draw: Any) -> tuple[ConvProblem, dict[str, Any]]:
    """A problem and the arguments of conv2d that state it."""
    one = st.sampled_from
    groups = draw(one([1, 1, 1, 2, 3, 7]))
    cg, kg = draw(st.integers(1, 70 // groups)), draw(st.integers(1, 70 // groups))
    if groups > 1 and draw(st.booleans()):
        cg = kg = draw(one([1, 2, 4]))
    r, s = draw(one([(1, 1), (3, 3), (3, 3), (5, 5), (2, 3), (1, 5), (4, 1)]))
    steps = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1)])
    stride, dilation = draw(steps), draw(steps)
    shape = (draw(st.integers(1, 3)), cg * groups, draw(one(PLANES)), draw(one(PLANES)))
    arguments = {
        "stride": draw(one([stride, list(stride)])) if stride[0] != stride[1] else stride[0],
        "padding": draw(paddings(stride)),
        "dilation": dilation,
        "groups": groups,
        "activation": draw(one([None, None, "relu", ("clip", -1, 0.5), "sigmoid"])),
        "in_layout": draw(LAYOUTS),
        "out_layout": draw(LAYOUTS),
        "threads": draw(one([1, oracle.THREADS])),
    }
    try:
        problem = problem_from_arguments(shape, (kg * groups, cg, r, s), residual=draw(st.booleans()), **arguments)
    except ArgumentError:  # a kernel larger than the padded input
        assume(False)
    return problem, arguments


@settings(max_examples=60)
@given(calls(), st.booleans(), st.integers(0, 99))
def test_against_the_oracle(call, with_bias, seed):
    problem, arguments = call
    have = oracle.operands(problem, seed, with_bias)
    before = have.x.copy(), have.w.copy()
    y = cpuconv.conv2d(have.x, have.w, have.bias, residual=have.residual, strategy="heuristic", **arguments)
    expected = reference.conv2d(have.x, have.w, have.bias, problem, have.residual)
    assert y.flags.c_contiguous and y.flags.writeable
    oracle.expect(y, expected, "standard", problem.out_layout, problem.k, arguments)
    np.testing.assert_array_equal(have.x, before[0])
    np.testing.assert_array_equal(have.w, before[1])


X, W = oracle.normal((2, 20, 8, 12)), oracle.normal((24, 20, 3, 3), 1) / 13
EXPECTED = reference.conv2d(X, W, None, ConvProblem(2, 20, 8, 12, 24, 3, 3, pads=(1, 1, 1, 1)))
RELU = np.maximum(EXPECTED, 0)


def conv(x: Any = X, w: Any = W, bias: Any = None, **options: Any) -> np.ndarray:
    """The convolution of this file, by the model."""
    return cpuconv.conv2d(x, w, bias, **{"padding": 1, "strategy": "heuristic", "threads": 1, **options})


def close(y: np.ndarray, expected: np.ndarray) -> None:
    assert reference.relative_error(y, expected) <= LIMIT


def test_against_torch():
    torch = pytest.importorskip("torch")
    for padding in ("same", "valid", 2):
        for stride, dilation, groups in ((1, 2, 1), (1, 1, 4)) if padding == "same" else ((2, 1, 1), (1, 1, 20)):
            w = oracle.normal((20, 20 // groups, 4, 3), 1) / 13
            expected = torch.nn.functional.conv2d(
                torch.from_numpy(X).double(), torch.from_numpy(w).double(), None, stride, padding, dilation, groups
            )
            close(conv(X, w, stride=stride, padding=padding, dilation=dilation, groups=groups), expected.numpy())


# What is no plain array


VIEWS = {
    "columns": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "rows": lambda x: np.repeat(x, 3, axis=2)[:, :, 1::3],
    "half": lambda x: np.concatenate([x, x], axis=1)[:, :20],
    "channels": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "mirrored": lambda x: x[:, :, ::-1, ::-1].copy()[:, :, ::-1, ::-1],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "nhwc": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "whcn": lambda x: np.ascontiguousarray(x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0),
    "fortran": lambda x: np.asfortranarray(x),
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    "readonly": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("algorithm", [None, "direct", "im2col"])
def test_views(view, algorithm):
    """Whatever the strides, as input and as residual, the result is the same and nothing is written."""
    x = view(X)
    np.testing.assert_array_equal(x, X)
    if algorithm in (None, *(solver.NAME for solver in select.TABLE)):
        made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic", threads=1, algorithm=algorithm)
        close(made(x), EXPECTED)
        np.testing.assert_array_equal(x, X)


def test_views_as_residual():
    residual = oracle.normal(EXPECTED.shape, 5)
    expected = np.maximum(EXPECTED + residual, 0)
    for view in (
        np.ascontiguousarray(residual.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        residual[:, :, ::-1].copy()[:, :, ::-1],
        np.asfortranarray(residual),
    ):
        for algorithm in ("direct", "winograd"):
            made = cpuconv.plan(
                X.shape, W, padding=1, residual=True, activation="relu", strategy="heuristic", algorithm=algorithm
            )
            close(made(X, residual=view), expected)
            np.testing.assert_array_equal(view, residual)


def test_broadcast_input():
    """Strides of zero."""
    x = np.broadcast_to(X[:1, :1], X.shape)
    close(conv(x), conv(x.copy()))


def test_one_plan_many_views():
    """More kinds of strides than a plan keeps contexts for; back to the first at the end."""
    made = cpuconv.plan((1, 20, 8, 12), W, padding=1, strategy="heuristic", threads=1)
    for gap in [*range(12), 0, 1]:
        wide = np.full((1, 20, 8, 12 + gap), np.nan, np.float32)
        wide[..., :12] = X[:1]
        close(made(wide[..., :12]), EXPECTED[:1])


class Exporter:
    """A tensor of another library, on the CPU."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape = array.shape


class WithDlpack(Exporter):
    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class WithArray(Exporter):
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array


@pytest.mark.parametrize("kind", [WithDlpack, WithArray])
def test_foreign_arrays(kind):
    bias = np.arange(24, dtype=np.float32)
    expected = EXPECTED + bias[:, None, None]
    close(conv(kind(X), kind(W), kind(bias)), expected)
    made = cpuconv.plan(X.shape, kind(W), kind(bias), padding=1, residual=True, strategy="heuristic")
    close(made(kind(X), residual=kind(EXPECTED.astype(np.float32))), expected + EXPECTED)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X.copy())
    close(conv(x, torch.from_numpy(W.copy()).requires_grad_()), EXPECTED)
    close(conv(x.to(memory_format=torch.channels_last)), EXPECTED)
    with pytest.raises(ArgumentTypeError, match="'x' must be of dtype float32"):
        conv(x.double())


# out=


def test_out():
    out = np.full(EXPECTED.shape, np.nan, np.float32)
    assert conv(out=out) is out
    close(out, EXPECTED)
    out[...] = np.nan
    made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic")
    assert made(X, out=out) is out
    close(out, EXPECTED)
    assert not np.shares_memory(made(X), made(X))


@pytest.mark.parametrize(
    "out, kind, message",
    [
        (lambda: np.empty((2, 24, 8, 11), np.float32), ArgumentError, r"'out' must be of shape \(2, 24, 8, 12\), not"),
        (lambda: np.empty(EXPECTED.shape), ArgumentTypeError, "'out' must be of dtype float32"),
        (lambda: [1.0], ArgumentTypeError, "'out' must be a NumPy array, not a list"),
        (lambda: np.empty((2, 24, 12, 8), np.float32).swapaxes(2, 3), ArgumentError, "'out' must be C-contiguous"),
        (lambda: np.broadcast_to(np.float32(0), EXPECTED.shape), ArgumentError, "'out' must be writable, not"),
    ],
)
def test_out_refused(out, kind, message):
    with pytest.raises(kind, match=message):
        conv(out=out())


@pytest.mark.parametrize("overlapped", ["x", "residual", "w", "bias"])
def test_out_overlaps_an_input(overlapped):
    memory = np.ones(8 << 10, np.float32)
    arrays = {"x": X, "residual": EXPECTED.astype(np.float32), "w": W, "bias": np.ones(24, np.float32)}
    shape = arrays[overlapped].shape
    arrays[overlapped] = memory[: int(np.prod(shape))].reshape(shape)
    out = memory[: EXPECTED.size].reshape(EXPECTED.shape)
    before = memory.copy()
    with pytest.raises(ArgumentError, match="'out' must be memory of its own, not memory that an input occupies"):
        conv(out=out, **arrays)
    np.testing.assert_array_equal(memory, before)


# Weights


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans that conv2d makes, in order."""
    plans: list[Any] = []

    def counted(*arguments: Any) -> Plan:
        plans.append(Plan(*arguments))
        return plans[-1]

    monkeypatch.setattr(api, "Plan", counted)
    return plans


def test_read_only_weights_are_packed_once(made):
    w = read_only(W)
    for _ in range(3):
        close(conv(w=w), EXPECTED)
    assert len(made) == 1
    close(conv(w=w, activation="relu"), RELU)  # other arguments: another plan
    close(conv(X[:1], w=w), EXPECTED[:1])
    close(conv(w=w, residual=EXPECTED.astype(np.float32)), 2 * EXPECTED)
    assert len(made) == 4
    other = read_only(2 * W)
    close(conv(w=other), 2 * EXPECTED)
    close(conv(w=w), EXPECTED)
    assert len(made) == 5


def test_remembered_weights_are_let_go(made):
    w = read_only(W)
    before = len(api._remembered)
    conv(w=w)
    conv(w=w, activation="relu")
    assert len(api._remembered) == before + 2
    plans = [weakref.ref(plan) for plan in made]
    made.clear()
    del w
    gc.collect()
    assert len(api._remembered) == before
    assert [plan() for plan in plans] == [None, None]


def test_bias_changes_with_remembered_weights(made):
    w, bias = read_only(W), np.arange(24, dtype=np.float32)
    close(conv(w=w, bias=bias), EXPECTED + bias[:, None, None])
    close(conv(w=w), EXPECTED)
    bias *= -2
    close(conv(w=w, bias=bias), EXPECTED + bias[:, None, None])
    close(conv(w=w, bias=None), EXPECTED)
    assert len(made) == 1
    with pytest.raises(ArgumentError, match=r"'bias' must be of shape \(24,\), not \(23,\)"):
        conv(w=w, bias=bias[:23])


def test_lists_for_arguments():
    w = read_only(W)
    for _ in range(2):
        close(conv(w=w, stride=[1, 1], padding=[[1, 1], [1, 1]], dilation=[1, 1]), EXPECTED)


def test_writable_weights_are_packed_every_time(made):
    w = W.copy()
    close(conv(w=w), EXPECTED)
    w *= 3
    close(conv(w=w), 3 * EXPECTED)
    assert len(made) == 2


def test_a_plan_keeps_its_own_weights_and_bias():
    w, bias = W.copy(), np.ones(24, np.float32)
    fixed = cpuconv.plan(X.shape, w, bias, padding=1, strategy="heuristic")
    w[...], bias[...] = np.nan, np.nan
    close(fixed(X), EXPECTED + 1)


def test_denormal_weights_are_zero():
    w = np.full(W.shape, 1e-40, np.float32)
    assert w[0, 0, 0, 0] > 0
    for algorithm in (item.candidate.solver.NAME for item in select.spread(select.ranking(PROBLEM))):
        y = cpuconv.plan(X.shape, w, padding=1, strategy="heuristic", algorithm=algorithm)(X * 1e30)
        assert not y.any(), algorithm


def test_signed_weights_at_the_edge_of_normal():
    w = W.copy()
    w[:, 0] = np.finfo(np.float32).tiny * np.sign(w[:, 0])
    x = np.zeros_like(X)
    x[:, 0] = 1e38
    expected = reference.conv2d(x, w, None, PROBLEM)
    close(conv(x, w, accuracy="exact"), expected)
    assert np.abs(expected).max() > 0.1


# Numbers that are none


PROBLEM = ConvProblem(2, 20, 8, 12, 24, 3, 3, pads=(1, 1, 1, 1))


def spoilt() -> np.ndarray:
    x = X.copy()
    x[0, 3, 2, 2], x[0, 5, 7, 11], x[1, 0, 0, 0], x[1, 7, 4, 4] = np.nan, np.inf, -np.inf, 3e38
    return x


def test_not_finite_exact():
    x = spoilt()
    expected = reference.conv2d(x, W, None, PROBLEM)
    assert np.isnan(expected).any() and np.isinf(expected).any() and np.isfinite(expected).any()
    for activation in (None, "relu", "relu6"):
        want = reference.conv2d(x, W, None, PROBLEM) if activation is None else None
        y = conv(x, accuracy="exact", activation=activation)
        if want is None:
            with np.errstate(invalid="ignore"):
                want = np.minimum(np.maximum(expected, 0), 6 if activation == "relu6" else np.inf)
        assert reference.relative_error(y, want) <= 1e-5


@pytest.mark.parametrize("accuracy", ["standard", "fast"])
def test_not_finite_elsewhere(accuracy):
    """No crash; an image without them is untouched."""
    x = spoilt()
    x[1] = X[1]
    for item in select.spread(select.ranking(PROBLEM)):
        if select.Limits(accuracy).admits_accuracy(item.candidate.accuracy):
            name = item.candidate.solver.NAME
            made = cpuconv.plan(x.shape, W, padding=1, strategy="heuristic", accuracy=accuracy, algorithm=name)
            y = made(x)
            assert np.isnan(y[0]).any(), name
            if name != "fft":  # a block of tiles may span images, a tile may not
                close(y[1], EXPECTED[1])


@pytest.mark.parametrize("layout", layouts.NAMES)
def test_empty_batch(layout):
    x = np.empty(layouts.get(layout).shape(0, 20, 8, 12), np.float32)
    y = cpuconv.conv2d(x, W, np.ones(24, np.float32), padding=1, in_layout=layout, out_layout=layout)
    assert y.shape == layouts.get(layout).shape(0, 24, 8, 12) and y.dtype == np.float32
    for strategy in select.STRATEGIES:
        made = cpuconv.plan((0, 20, 8, 12), W, padding=1, in_layout=layout, strategy=strategy, activation="sigmoid")
        assert made(x).shape == (0, 24, 8, 12)
    assert "0" in str(cpuconv.explain((0, 20, 8, 12), W.shape, padding=1))
    auto = cpuconv.plan((0, 20, 8, 12), W, in_layout="auto", out_layout="auto")
    assert auto.in_layout in layouts.NAMES


# Choices


def test_cached_times_nothing(no_timing):
    kept = cpuconv.plan(X.shape, W, padding=1)
    assert kept.decided_by in ("model", "store")
    close(kept(X), EXPECTED)
    close(cpuconv.conv2d(X, W, padding=1), EXPECTED)


BIG = ((1, 64, 56, 56), (64, 64, 3, 3))


@pytest.mark.parametrize("accuracy", select.ACCURACIES)
def test_accuracy_classes(accuracy):
    told = cpuconv.explain(*BIG, padding=1, accuracy=accuracy, strategy="heuristic", threads=1)
    chosen = Candidate.parse(told.algorithm)
    assert select.Limits(accuracy).admits_accuracy(chosen.accuracy)
    if accuracy == "standard":
        assert chosen.solver.NAME == "winograd"
    left_out = {line.candidate: line.left_out for line in told.lines if line.left_out}
    for line in told.lines:
        if "(" in line.candidate and not select.Limits(accuracy).admits_accuracy(
            Candidate.parse(line.candidate).accuracy
        ):
            assert "accuracy" in left_out[line.candidate]


def test_accuracy_binds_named_algorithms():
    with pytest.raises(ArgumentError, match="'accuracy' must be one that winograd meets, not 'exact'"):
        cpuconv.plan(X.shape, W, padding=1, algorithm="winograd", accuracy="exact")
    full = cpuconv.plan(X.shape, W, padding=1, algorithm="winograd", strategy="heuristic").algorithm
    with pytest.raises(ArgumentError, match=r"'accuracy' must be one that winograd\(m=.* meets, not 'exact'"):
        cpuconv.plan(X.shape, W, padding=1, algorithm=full, accuracy="exact")
    assert cpuconv.plan(X.shape, W, padding=1, algorithm=full).algorithm == full


def test_workspace_limit():
    sizes = sorted({line.workspace for line in cpuconv.explain(*BIG, padding=1).lines if line.workspace is not None})
    least = sizes[0]
    for limit in (least, (least + sizes[-1]) // 2, sizes[-1]):
        told = cpuconv.explain(*BIG, padding=1, workspace_limit=limit)
        assert next(line.workspace for line in told.lines if line.chosen) <= limit
    made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic", threads=1)
    tight = min(line.workspace for line in made.explain().lines if line.workspace is not None)
    fitted = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic", threads=1, workspace_limit=tight)
    assert fitted.workspace_bytes <= tight
    close(fitted(X), EXPECTED)
    assert tight > 0
    with pytest.raises(WorkspaceError, match=f"'workspace_limit' must be at least {tight} bytes for this problem, not"):
        conv(workspace_limit=tight - 1)
    named = {"padding": 1, "algorithm": cpuconv.plan(X.shape, W, padding=1, algorithm="winograd").algorithm}
    size = cpuconv.plan(X.shape, W, **named).workspace_bytes
    assert cpuconv.plan(X.shape, W, workspace_limit=size, **named).workspace_bytes == size
    with pytest.raises(WorkspaceError, match=f"'workspace_limit' must be at least {size} bytes for winograd"):
        cpuconv.plan(X.shape, W, workspace_limit=size - 1, **named)


def test_auto_layouts():
    made = cpuconv.plan(X.shape, W, padding=1, in_layout="auto", out_layout="auto", strategy="heuristic")
    assert {made.in_layout, made.out_layout} <= set(layouts.NAMES)
    y = made(layouts.from_nchw(X, made.in_layout))
    close(layouts.to_nchw(y, made.out_layout, 24), EXPECTED)
    half = cpuconv.plan(X.shape, W, padding=1, in_layout="NHWC", out_layout="auto", strategy="heuristic")
    assert half.in_layout == "NHWC"
    close(layouts.to_nchw(conv(out_layout="auto", in_layout="NCHW"), half.out_layout, 24), EXPECTED)


def test_auto_layouts_keep_to_the_workspace():
    """Whatever limit some layouts meet, `auto` meets."""
    shape, w = (1, 16, 12, 12), oracle.normal((16, 16, 1, 1))
    favourites = ("NCHW", BLOCKED)

    def sizes(a: str, b: str) -> list[int]:
        lines = cpuconv.explain(shape, w.shape, in_layout=a, out_layout=b, threads=1).lines
        return [line.workspace for line in lines if line.workspace is not None]

    found = {pair: min(sizes(*pair)) for pair in itertools.product(favourites, repeat=2)}
    assert len(set(found.values())) > 1
    for limit in found.values():
        auto = cpuconv.plan(shape, w, in_layout="auto", out_layout="auto", threads=1, workspace_limit=limit)
        assert auto.workspace_bytes <= limit
    with pytest.raises(WorkspaceError):
        cpuconv.plan((1, 16, 12, 12), W[:, :16], in_layout="auto", out_layout="auto", workspace_limit=0, padding=1)


def test_what_a_plan_says():
    made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic", threads=1)
    assert made.problem == PROBLEM
    assert made.in_layout == made.out_layout == "NCHW"
    assert made.packed_weight_bytes >= W.nbytes
    assert "\n" not in made.algorithm and str(Candidate.parse(made.algorithm)) == made.algorithm
    assert made.algorithm in repr(made) and PROBLEM.key in repr(made)
    told = made.explain()
    assert told.algorithm == made.algorithm and told.to_dict()["problem"] == PROBLEM.key
    (chosen,) = (line for line in told.lines if line.chosen)
    assert chosen.candidate == made.algorithm and chosen.workspace == made.workspace_bytes
    assert {line.candidate for line in told.lines if "(" not in line.candidate} == {
        name for name, reason in select.applicable(PROBLEM) if reason
    }
    assert str(told).splitlines()[1].startswith(made.algorithm)
    assert told.to_dict() == cpuconv.explain(X.shape, W.shape, padding=1, strategy="heuristic", threads=1).to_dict()


def test_named_algorithms_that_cannot():
    with pytest.raises(ArgumentError, match="'algorithm' must be one of pointwise, .*, not 'magic'"):
        cpuconv.plan(X.shape, W, algorithm="magic")
    with pytest.raises(ArgumentError, match=r"'algorithm' must be one that can run this problem \(pointwise: .*3x3"):
        cpuconv.plan(X.shape, W, algorithm="pointwise")
    with pytest.raises(ArgumentError, match="'algorithm' must be a solver with its parameters"):
        cpuconv.plan(X.shape, W, algorithm="direct(v=1)")
    with pytest.raises(ArgumentError, match="'algorithm' must be a candidate of this problem, such as direct"):
        cpuconv.plan(X.shape, W, algorithm="direct(v=99,rows=1,cols=1,block=1)")
    with pytest.raises(ArgumentError, match="'algorithm' must be one of"):
        cpuconv.plan(X.shape, W, algorithm=3)


def test_groups_of_numpy_integers():
    w = oracle.normal((20, 5, 3, 3)) / 7
    x = layouts.from_nchw(X, "NCHW8c")
    y = conv(x, w, groups=np.int64(4), stride=np.int32(1), in_layout="NCHW8c")
    close(y, conv(X, w, groups=4))


# Refused arguments: the message names the argument, what it must be, and what it was.
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": X[0]}, ArgumentError, r"'x' must be of rank 4 for NCHW, not of rank 3, \(20, 8, 12\)"),
    ({"x": X, "in_layout": "NCHW8c"}, ArgumentError, "'x' must be of rank 5 for NCHW8c, not of rank 4"),
    ({"x": X.astype(np.float64)}, ArgumentTypeError, r"'x' must be of dtype float32: cast it with .*, not float64"),
    ({"x": X.astype(">f4")}, ArgumentTypeError, "'x' must be float32 in native byte order"),
    ({"x": X.tolist()}, ArgumentTypeError, "'x' must be a float32 NumPy array .*, not a list"),
    ({"x": None}, ArgumentTypeError, "'x' must be .*, not a NoneType"),
    ({"x": X[:, :19]}, ArgumentError, "'w' must be of shape .K, 19, R, S., for an input of 19 channels"),
    ({"x": X[..., :0]}, ArgumentError, "'x' must be of a shape .* without empty axes"),
    ({"w": W[0]}, ArgumentError, r"'w' must be of rank 4, .*, not of rank 3"),
    ({"w": W.astype(np.float16)}, ArgumentTypeError, "'w' must be of dtype float32: cast it .*, not float16"),
    ({"w": W[:0]}, ArgumentError, "'w' must be of a shape .* without empty axes"),
    (
        {"w": oracle.normal((4, 20, 11, 3))},
        ArgumentError,
        "'w' must be weights whose kernel is no larger than .* 10x14",
    ),
    ({"dilation": 7}, ArgumentError, "'w' must be weights .*, not a kernel of 3x3 .15x15 with its dilation."),
    ({"bias": np.ones(23, np.float32)}, ArgumentError, r"'bias' must be of shape \(24,\), not \(23,\)"),
    ({"bias": np.ones((24, 1), np.float32)}, ArgumentError, r"'bias' must be of shape \(24,\), not \(24, 1\)"),
    ({"bias": np.ones(24)}, ArgumentTypeError, "'bias' must be of dtype float32: cast it .*, not float64"),
    ({"stride": 0}, ArgumentError, "'stride' must be .*1.*, not 0"),
    ({"stride": (1, -2)}, ArgumentError, "'stride' must be .*, not .*-2"),
    ({"stride": 1.5}, ArgumentTypeError, "'stride' must be an integer or a pair of integers, not 1.5"),
    ({"dilation": 0}, ArgumentError, "'dilation' must be"),
    ({"padding": -1}, ArgumentError, "'padding' must be .*, not -1"),
    ({"padding": "full"}, ArgumentError, "'padding' must be .*'same_lower', not 'full'"),
    ({"padding": "same", "stride": 2}, ArgumentError, "'padding' must be 'same_upper' or 'same_lower'"),
    ({"padding": (1, 1, 1, 1)}, ArgumentError, "'padding' must be"),
    ({"groups": 3}, ArgumentError, "'groups' must be a divisor of the 20 input channels .*, not 3"),
    ({"groups": 2}, ArgumentError, "'w' must be of shape .K, 10, R, S., .* and groups=2, not"),
    ({"groups": 0}, ArgumentError, "'groups' must be"),
    ({"groups": "all"}, ArgumentTypeError, "'groups' must be .*, not 'all'"),
    ({"activation": "swish"}, ArgumentError, "'activation' must be one of None, 'relu', .*, not 'swish'"),
    ({"activation": ("clip", 1)}, ArgumentError, "'activation' must be .'clip', lo, hi.,"),
    ({"activation": 7}, ArgumentTypeError, "'activation' must be"),
    (
        {"residual": EXPECTED[..., :5].astype(np.float32)},
        ArgumentError,
        r"'residual' must be of shape \(2, 24, 8, 12\)",
    ),
    ({"residual": EXPECTED}, ArgumentTypeError, "'residual' must be of dtype float32"),
    ({"in_layout": "NCWH"}, ArgumentError, "'in_layout' must be one of NCHW, .*, not 'NCWH'"),
    ({"in_layout": "auto"}, ArgumentError, "'in_layout' must be the layout that 'x' is in"),
    ({"out_layout": "CHW"}, ArgumentError, "'out_layout' must be one of NCHW, .*, not 'CHW'"),
    ({"out_layout": None}, ArgumentError, "'out_layout' must be one of"),
    ({"threads": 0}, ArgumentError, "'threads' must be from 1 to .*, not 0"),
    ({"threads": 10**6}, ArgumentError, "'threads' must be from 1 to .*, not 1000000"),
    ({"threads": 1.0}, ArgumentTypeError, "'threads' must be an integer or None, not 1.0"),
    ({"strategy": "fastest"}, ArgumentError, "'strategy' must be one of heuristic, cached, profile, not 'fastest'"),
    ({"accuracy": "high"}, ArgumentError, "'accuracy' must be one of exact, standard, fast, not 'high'"),
    ({"accuracy": None}, ArgumentError, "'accuracy' must be one of exact, standard, fast, not None"),
    ({"workspace_limit": -1}, ArgumentError, "'workspace_limit' must be None or a number of bytes, 0 or more, not -1"),
    ({"workspace_limit": "1M"}, ArgumentError, "'workspace_limit' must be None or a number of bytes"),
]


@pytest.mark.parametrize(
    "changed, kind, message", REFUSED, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_refused(changed, kind, message):
    with pytest.raises(kind, match=f"^Argument {message}"):
        conv(**changed)
    assert issubclass(kind, cpuconv.CpuconvError)
    assert issubclass(kind, TypeError if kind is ArgumentTypeError else ValueError)


OF_PLANS = ("stride", "padding", "dilation", "groups", "activation", "threads", "strategy", "accuracy")


@pytest.mark.parametrize(
    "changed, kind, message",
    [each for each in REFUSED if set(each[0]) <= set(OF_PLANS)],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_refused_by_plan_and_explain(changed, kind, message):
    options = {"padding": 1, **changed}
    with pytest.raises(kind, match=f"^Argument {message}"):
        cpuconv.plan(X.shape, W, **options)
    with pytest.raises(kind, match=f"^Argument {message}"):
        cpuconv.explain(X.shape, W.shape, **options)


@pytest.mark.parametrize("shape", [(20, 8, 12), (2, 20, 8, 0), (-1, 20, 8, 12)])
def test_refused_shapes(shape):
    with pytest.raises(ArgumentError, match="^Argument 'x' must be of"):
        cpuconv.plan(shape, W)
    with pytest.raises(ArgumentError, match="^Argument 'x' must be of"):
        cpuconv.explain(shape, W.shape)


def test_refused_by_a_plan():
    made = cpuconv.plan(X.shape, W, padding=1, strategy="heuristic")
    with pytest.raises(ArgumentError, match=r"'x' must be of shape \(2, 20, 8, 12\), NCHW of .*, not \(1, 20, 8, 12\)"):
        made(X[:1])
    with pytest.raises(ArgumentTypeError, match="'x' must be of dtype float32"):
        made(X.astype(np.float64))
    with pytest.raises(ArgumentError, match="'residual' must be None: the plan adds none, not an array"):
        made(X, residual=X)
    adding = cpuconv.plan(X.shape, W, padding=1, residual=True, strategy="heuristic")
    with pytest.raises(ArgumentError, match="'residual' must be an array: the plan adds one, not None"):
        adding(X)
    close(made(X), EXPECTED)
