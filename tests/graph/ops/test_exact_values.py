"""Values that operators must give to the last bit, or at ties and infinities, whatever computes them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from onnx.reference import ReferenceEvaluator  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402
from support.graphs import one_node, runtime_session  # noqa: E402

INF, NAN = np.inf, np.nan


def got(op: str, arrays: list, opset: int = 21, fixed: tuple[int, ...] = (), **attributes: object) -> np.ndarray:
    model, feed = one_node(op, arrays, 1, opset, fixed=fixed, **attributes)
    return cpuconv.compile(model).run(feed)["y0"]


def by_runtime(op: str, arrays: list, opset: int = 21, fixed: tuple[int, ...] = (), **attributes: object) -> np.ndarray:
    model, feed = one_node(op, arrays, 1, opset, fixed=fixed, **attributes)
    return runtime_session(runtime, model).run(None, feed)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("x", "reverse", "y"),
    [
        ([1, INF, 2], 0, [0, 1, INF]),
        ([1, INF, 2], 1, [INF, 2, 0]),
        ([1, 1e20], 0, [0, 1]),
        ([1e20, 1], 1, [1, 0]),
        ([NAN, 1], 1, [1, 0]),
        ([], 0, []),
    ],
)
def test_exclusive_sums(dtype, x, reverse, y):
    for shape in ((-1,), (1, -1, 1)):
        array, axis = np.array(x, dtype).reshape(shape if x else [max(0, each) for each in shape]), len(shape) // 2
        result = got("CumSum", [array, np.array(axis)], fixed=(1,), exclusive=1, reverse=reverse)
        np.testing.assert_array_equal(result.ravel(), np.array(y, dtype))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64, np.float32])
@pytest.mark.parametrize("depth", [1, 5, 127, 200, 300])
def test_one_hot_of_any_type(dtype, depth):
    info = np.finfo(dtype) if dtype == np.float32 else np.iinfo(dtype)
    indices = np.array([0, 1, 4, 100, 127, *([] if info.min == 0 else [-1, -5, -128]), info.max, info.min], dtype)
    result = got("OneHot", [indices, np.array(depth), np.array([2, 7], np.int32)], fixed=(1,))
    for row, index in zip(result, indices.tolist(), strict=True):
        place = int(index) + depth * (index < 0)
        np.testing.assert_array_equal(row, [7 if at == place else 2 for at in range(depth)])


@pytest.mark.parametrize("scale", [0.5, 3.0, [0.5, 0.25, 7.0]])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_integers_quantised(scale, dtype):
    x = np.array([[0, 1, -1], [7, 100, -300], [2**31 - 1, -(2**31), 5]], np.int32)
    zero = np.full(np.shape(scale), 3, dtype)
    result = got("QuantizeLinear", [x, np.array(scale, np.float32), zero], axis=1)
    info = np.iinfo(dtype)
    right = np.clip(np.rint(x.astype(np.float32) / np.array(scale, np.float32)) + 3, info.min, info.max)
    np.testing.assert_array_equal(result, right.astype(dtype))


SCALES = [np.float32(each) for each in (0.3, 1 / 3, 0.5, 0.6, 2 / 3, 0.75, 28 / 23, 1.5, 1.7, 16 / 7, 2.5, 28 / 13)]


@pytest.mark.parametrize("mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel_symmetric", "half_pixel", "asymmetric"])
def test_places_at_ties(coordinates, mode):
    for scale in SCALES:
        for size in (5, 7, 11, 46, 50):
            if int(np.float32(size) * scale) == size:
                continue
            x = np.arange(size, dtype=np.float32).reshape(1, 1, size)
            arrays = [x, None, np.array([1, 1, scale], np.float32)]
            attributes = {"nearest_mode": mode, "coordinate_transformation_mode": coordinates}
            right = by_runtime("Resize", arrays, 19, (2,), mode="nearest", **attributes)
            np.testing.assert_array_equal(got("Resize", arrays, 19, (2,), mode="nearest", **attributes), right)


def _cubic_of_torch(x: np.ndarray, grid: np.ndarray, padding: str, aligned: bool) -> np.ndarray:
    """PyTorch's bicubic grid_sample of one plane: of 4x4 places around one each is moved inside by itself."""

    def inside(at: int, size: int) -> int | None:
        if padding == "border":
            return min(max(at, 0), size - 1)
        return at if 0 <= at < size else None

    def weights(t: float) -> list[float]:
        a = -0.75
        near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
        far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (1 + t, 2 - t)]
        return [far[0], near[0], near[1], far[1]]

    y = np.zeros(grid.shape[:-1])
    for place in np.ndindex(y.shape):
        units = [
            (at + 1) / 2 * (size - 1) if aligned else ((at + 1) * size - 1) / 2
            for at, size in zip(grid[place].astype(np.float64)[::-1], x.shape, strict=True)
        ]
        rows, columns = (
            [(int(np.floor(at)) - 1 + step, weight) for step, weight in enumerate(weights(at % 1))] for at in units
        )
        for row, by in rows:
            for column, times in columns:
                r, c = inside(row, x.shape[0]), inside(column, x.shape[1])
                y[place] += by * times * x[r, c] if r is not None and c is not None else 0
    return y


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_cubic_samples_are_those_of_torch(padding, aligned):
    rng = np.random.default_rng(0)
    for h, w in ((1, 1), (3, 4), (5, 2)):
        x, grid = rng.normal(size=(h, w)).astype(np.float32), rng.uniform(-2.5, 2.5, (5, 6, 2)).astype(np.float32)
        for opset, mode in ((16, "bicubic"), (20, "cubic")):
            result = got(
                "GridSample", [x[None, None], grid[None]], opset, mode=mode, padding_mode=padding, align_corners=aligned
            )
            np.testing.assert_allclose(result[0, 0], _cubic_of_torch(x, grid, padding, bool(aligned)), atol=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_samples_are_those_of_onnxruntime(mode, padding, aligned):
    rng = np.random.default_rng(1)
    x, grid = rng.normal(size=(2, 2, 3, 4)).astype(np.float32), rng.uniform(-2, 2, (2, 5, 6, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    np.testing.assert_allclose(
        got("GridSample", [x, grid], 16, **attributes), by_runtime("GridSample", [x, grid], 16, **attributes), atol=1e-4
    )


@pytest.mark.parametrize("opset", [10, 13, 15, 16])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_of_older_opsets(opset, mode):
    rng = np.random.default_rng(2)
    x, regions = rng.normal(size=(2, 3, 8, 9)).astype(np.float32), rng.uniform(0, 14, (4, 4)).astype(np.float32)
    regions = np.sort(regions.reshape(4, 2, 2), axis=1).reshape(4, 4)
    attributes = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5, "mode": mode}
    arrays = [x, regions, np.array([0, 1, 1, 0])]
    result = got("RoiAlign", arrays, opset, **attributes)
    np.testing.assert_allclose(result, by_runtime("RoiAlign", arrays, opset, **attributes), atol=1e-5)
    if opset < 16:  # what they mean, in words of later ones
        attributes["coordinate_transformation_mode"] = "output_half_pixel"
        model, feed = one_node("RoiAlign", arrays, 1, 16, **attributes)
        np.testing.assert_allclose(result, ReferenceEvaluator(model).run(None, feed)[0], atol=1e-5)


NUMBERS = np.array([0, -0.0, 0.5, -0.5, 1, -1, 2, -2, 3, -3, 2.5, -2.5, 1e30, -1e30, INF, -INF, NAN], np.float32)


def check_powers(result: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Compare with what C99 says, signs of zeros too."""
    with np.errstate(all="ignore"):
        right = np.power(*np.broadcast_arrays(x, y), dtype=np.float64)
        right[(y == 0.5) & (x == -INF)], right[(y == 0.5) & (x == 0)] = INF, 0  # where NumPy takes the square root
    np.testing.assert_allclose(result, right.astype(np.float32), rtol=1e-5)
    signed = ~np.isnan(right)
    np.testing.assert_array_equal(np.signbit(result[signed]), np.signbit(right[signed]))


def test_powers_of_two_tensors():
    x, y = (each.ravel() for each in np.meshgrid(NUMBERS, NUMBERS))
    check_powers(got("Pow", [x, y]), x, y)


@pytest.mark.parametrize("power", NUMBERS)
def test_powers_that_are_stated(power):
    y = np.full((), power, np.float32)
    check_powers(got("Pow", [NUMBERS, y], fixed=(1,)), NUMBERS, y)


@pytest.mark.parametrize("base", NUMBERS)
def test_powers_of_a_stated_number(base):
    x = np.full((), base, np.float32)
    check_powers(got("Pow", [x, NUMBERS], fixed=(0,)), x, NUMBERS)


@pytest.mark.parametrize("beta", [0.75, 0.5])
@pytest.mark.parametrize("channels", [5, 32])
def test_lrn_of_infinite_inputs(channels, beta):
    x = np.random.default_rng(0).normal(size=(1, channels, 4, 6)).astype(np.float32)
    x[0, 2, 1, 1], x[0, 3, 2, 2] = np.inf, np.nan
    y = got("LRN", [x], size=3, beta=beta)
    assert np.isnan(y[0, 2, 1, 1]) and y[0, 1, 1, 1] == y[0, 3, 1, 1] == 0  # inf / inf, and finite / inf
    assert np.isnan(y[0, 2:5, 2, 2]).all() and np.isfinite(y[0, 0]).all()


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("largest", (0, 1))
@pytest.mark.parametrize("dtype", (np.float32, np.float16, np.int64, np.uint8))
def test_few_of_a_long_axis(dtype, largest, axis):
    """Ties go to the first index, and NaN is the largest, as if all were sorted; the k-th itself may be either."""
    rng = np.random.default_rng(0)
    x = np.maximum(rng.integers(-50, 50, (3, 5000)), 0).astype(dtype)  # half of them are equal
    if dtype in (np.float32, np.float16):
        x[0, [7, 4001]], x[1, ::2], x[2, 5] = np.nan, np.nan, -np.inf
    keys = [(np.isnan(line.astype(float)), line.astype(float)) for line in x]
    for k in (1, 30, 1200):
        got = TABLE["TopK"].reference(
            TABLE["TopK"].node(["x", "k"], ["v", "i"], axis=axis, largest=largest),
            [x if axis else x.T, np.array([k])],
        )
        values, places = (each if axis else each.T for each in got)
        for at, (unknown, line) in enumerate(keys):
            sign = -1 if largest else 1
            rank = sorted(range(5000), key=lambda i, u=unknown, v=line: (sign * u[i], 0 if u[i] else sign * v[i], i))
            assert places[at].tolist() == rank[:k]
            np.testing.assert_array_equal(values[at], x[at, rank[:k]])
