"""FFT: codelets against NumPy, whole convolutions against the float64 oracle, and the shape of the machine code."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
import layouts
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.isa import current
from cpuconv.kernels.products.gemm_tile import LINE
from cpuconv.kernels.transforms import fft as micro
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import fft
from support import oracle
from support.example import close
from support.packed import spectrum

BLOCKED = layouts.blocked(current().lanes).name
FORMS = (micro.GAUSS, micro.REGULAR)
ODD_SIZES = (1, 3, 5, 6, 7, 9, 10, 14, 18)


class Numbers:
    """The vector emitter's operations on plain numbers, counted."""

    def __init__(self) -> None:
        self.operations = 0

    def constant(self, value):
        return value

    def fma(self, a, b, c):
        self.operations += 1
        return a * b + c

    def add(self, a, b):
        return self.fma(a, 1.0, b)

    def sub(self, a, b):
        return self.fma(b, -1.0, a)

    def mul(self, a, b):
        return self.fma(a, b, 0.0)


def as_complex(pairs) -> np.ndarray:
    return np.array([complex(re or 0.0, im or 0.0) for re, im in pairs])


@pytest.mark.parametrize("size", (*ODD_SIZES, *fft.SIZES))
def test_codelets(size):
    rng = np.random.default_rng(size)
    z, x = rng.standard_normal(size) + 1j * rng.standard_normal(size), rng.standard_normal(size)
    found = micro.fourier(Numbers(), [(value.real, value.imag) for value in z])
    np.testing.assert_allclose(as_complex(found), np.fft.fft(z), atol=1e-12)
    found = micro.fourier_of_reals(Numbers(), list(x))
    np.testing.assert_allclose(as_complex(found), np.fft.rfft(x), atol=1e-12)
    back = micro.reals_of_fourier(Numbers(), found, size)
    np.testing.assert_allclose(back, size * x, atol=1e-11)


@pytest.mark.parametrize("size", fft.SIZES)
def test_operation_counts(size):
    counts = []
    values = [1.0] * size
    for run in (
        lambda vec: micro.fourier(vec, list(zip(values, values, strict=True))),
        lambda vec: micro.fourier_of_reals(vec, values),
        lambda vec: micro.reals_of_fourier(vec, micro.fourier_of_reals(Numbers(), values), size),
    ):
        vec = Numbers()
        run(vec)
        counts.append(vec.operations)
    assert tuple(counts) == fft.SIZES[size]


@pytest.mark.parametrize("rows", (2, 4, 12, 20))
@pytest.mark.parametrize("cols", (2, 4, 16))
@pytest.mark.parametrize("products", FORMS)
def test_plane_count(rows, cols, products):
    weight = np.random.default_rng(0).standard_normal((3, 2, 1, 1))
    count = micro.plane_count(rows, cols, products)
    assert spectrum(weight, (1, 1), rows, cols, products).shape == (count, 3, 2)
    real = 4  # frequencies that are their own mirror image
    found = fft.planes(rows, cols, products)
    assert (found.count, found.products) == (count, products * (rows * cols - real) // 2 + real)


SIZES = [(2, 2), (4, 12), (8, 16), (16, 16), (20, 8), (24, 2), (28, 20), (32, 32), (40, 48), (64, 64)]


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("products", FORMS)
def test_every_tile_size(size, products):
    reach = [min(7, extent - 1) for extent in size]
    problem = ConvProblem(2, 19, 37, 41, 35, *reach, pads=(3, 3, 3, 3), in_layout=BLOCKED, out_layout=BLOCKED)
    params = fft.Params(*size, products, v=1, n=2, block=7, chunk=1)  # the largest have two tiles
    oracle.check(problem, Candidate(fft.SOLVER, params))


@pytest.mark.parametrize("off", (-1, 0, 1))
@pytest.mark.parametrize("products", FORMS)
def test_around_a_tile(products, off):
    """Channels in and out, rows of outputs, and tiles of a block: one less than a tile's, equal, one more."""
    lanes, v, n = current().lanes, 2, current().pairs[1]
    tiles = 2 * n + off
    problem = ConvProblem(1, lanes + off, 16 + off, tiles * 10 + 6, v * lanes + off, 7, 7, threads=2)
    oracle.check(problem, Candidate(fft.SOLVER, fft.Params(16, 16, products, v, n, block=tiles, chunk=1)))


def test_both_forms_are_tried(described):
    """Few tiles: the weights bind, and four products of two planes read fewer; many: the products do."""
    found = [
        {params.products for params in fft.candidates(ConvProblem(1, 64, size, size, 64, 7, 7), current())}
        for size in (24, 56, 112)
    ]
    assert set().union(*found) == set(FORMS)


@pytest.mark.parametrize("size", (24, 40, 112))
def test_the_tiles_of_a_block_fetch_all_weights_of_a_panel(size):
    problem = ConvProblem(1, 64, size, size, 128, 7, 7, in_layout=BLOCKED, out_layout=BLOCKED)
    for params in fft.candidates(problem, current()):
        (step,) = assemble(problem, Candidate(fft.SOLVER, params)).steps
        assert step.args["total"] // step.args["blocks"] >= params.n
        for ref in (step.args[name] for name in ("gemm", "pair_gemm")):
            if ref and ref.tile.fetch:
                line = LINE * ref.tile.fetch
                apart = line if ref.tile.complex else step.args["fetch_step"]
                assert step.args["shares"] <= -(-step.args["most"] // params.n) and apart <= line
                assert step.args["shares"] * apart >= 4 * current().lanes * ref.tile.vectors


def test_by_name():
    """The largest kernel there is a tile for, through the public interface."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 5, 68, 64), (3, 5, 63, 63)))
    plan = cpuconv.plan(x.shape, w, padding=1, algorithm="fft")
    assert plan.algorithm.startswith("fft(rows=64,cols=64,")
    close(plan(x), reference.conv2d(x, w, None, plan.problem))


@pytest.mark.parametrize(
    ("changes", "word"), [({"stride": (1, 2)}, "stride"), ({"groups": 2}, "groups"), ({"h": 90, "r": 64}, "spans")]
)
def test_not_applicable(changes, word):
    problem = ConvProblem(**{"n": 1, "c": 4, "h": 40, "w": 40, "k": 4, "r": 7, "s": 7, **changes})
    assert word in fft.applicable(problem, current())


@pytest.mark.parametrize("products", FORMS)
@pytest.mark.parametrize("kernel", ("fft_in", "fft_out"))
def test_code_is_a_loop_not_an_unrolled_tile(kernel, products):
    """A codelet is emitted once, however many rows and columns a tile has: far fewer instructions than operations."""
    column, *_ = fft.SIZES[32]
    tile = micro.FftTransform(current().lanes, 32, 32, products, 26, 26)
    assert getattr(micro, kernel).assembly(tile).count("\n") < column * 16


def test_weights_that_would_fill_the_memory_are_refused():
    problem = ConvProblem.parse("ic2048ih64oc2048kh23ph11")
    assert "MB" in fft.applicable(problem, current())
