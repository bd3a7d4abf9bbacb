"""Packed weights against their NumPy forms (`packed`): whatever the strides, the channels and the workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.kernels.packing import packed_formats, packing
from cpuconv.kernels.packing.packed_formats import Panels, Transformed
from cpuconv.kernels.transforms.fft import GAUSS, REGULAR
from cpuconv.memory.aligned import aligned
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import fft, im2col, strassen, winograd
from cpuconv.solvers.shared import winograd_tiles
from support import oracle, packed
from support.guarded import EDGES, named, place
from support.strided import VIEWS

ISA = current()
SOLVERS = pytest.mark.parametrize(
    "solver", [each for each in oracle.SOLVERS if "split" not in each.name], ids=lambda solver: solver.name
)  # whose form is that of float32
ALIGNED = [name for name in VIEWS if name != "unaligned"]  # what is not is copied before


@pytest.fixture(autouse=True)
def small_weights_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers share weights of any size, in small units of work."""
    monkeypatch.setattr(packing, "_PARALLEL_BYTES", 0)


def spoilt(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Weights, some of them denormal, smallest, zero of either sign, NaN and infinite."""
    w = oracle.normal(shape, seed)
    values = np.array([1e-40, -1e-45, 1.17549435e-38, -1.17549435e-38, 0.0, -0.0], np.float32)
    flat = w.reshape(-1)
    flat[:: max(2, flat.size // 23)] = np.resize(values, flat[:: max(2, flat.size // 23)].size)
    return w


def same(found: np.ndarray, expected: np.ndarray, exact: bool, about: object) -> None:
    """To the last bit; of a transform, but for the way that float64 sums are formed."""
    assert found.dtype == np.float32 and found.shape == expected.shape, about
    if exact:
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), err_msg=str(about))
    else:
        np.testing.assert_allclose(
            found, expected, rtol=1.2e-7, atol=1e-12 * np.abs(expected).max(), err_msg=str(about)
        )


def check(
    problem: ConvProblem, candidate: Candidate, w: np.ndarray, threads: int = 1, about: object = ""
) -> np.ndarray:
    """Pack and compare; gives the packed form."""
    form = candidate.solver.packing(problem, candidate.params, ISA)
    about = f"{problem.key} {candidate} {about}"
    before = w.copy()
    for edge in EDGES:
        placed = place(w, edge)
        found = named(about, lambda placed=placed: form.pack(placed, threads))
        np.testing.assert_array_equal(placed, before)
    assert found.nbytes == form.size and found.ctypes.data % 64 == 0 and found.ndim == 1
    expected = packed.expected(problem, candidate, ISA, w)
    same(found, expected, not isinstance(form, Transformed), about)
    return found


def candidates(solver, problem: ConvProblem) -> list[Candidate]:
    """One candidate a packed form."""
    forms = {
        solver.packing(problem, params, ISA): Candidate(solver, params) for params in solver.candidates(problem, ISA)
    }
    return list(forms.values())


def variants(solver) -> Iterator[ConvProblem]:
    """Odd channels, tails of K, several groups and a dilation, as far as the solver takes them."""
    home = replace(oracle.home(solver), h=24, w=24)
    lanes = ISA.lanes
    if home.groups > 1:
        options = [replace(home, c=n * home.cg, k=n * home.kg, groups=n) for n in (1, lanes - 1, lanes, 2 * lanes + 3)]
    else:
        sizes = ((1, 1), (2, lanes - 1), (lanes + 1, lanes), (2 * lanes - 3, 3 * lanes + 1), (5 * lanes, 4 * lanes))
        if solver is strassen.SOLVER:  # pairs of blocks alone
            sizes = tuple((2 * a * lanes, 2 * b * lanes) for a, b in ((1, 1), (3, 1), (1, 4)))
        options = [replace(home, c=c, k=k) for c, k in sizes]
        options += [replace(home, c=3 * lanes, k=3 * 2 * lanes, groups=3), replace(home, c=lanes * 2, k=6, groups=2)]
    options += [replace(home, dilation=(2, 3)), replace(home, r=1, s=4, pads=(0,) * 4), replace(home, r=9, s=8)]
    for option in options:
        if solver.applicable(option, ISA) is None:
            yield option


@SOLVERS
def test_every_form(solver):
    found = list(variants(solver))
    assert len(found) >= 4
    for problem in found:
        w = spoilt(problem.weight_shape)
        for candidate in candidates(solver, problem):
            check(problem, candidate, w)


@SOLVERS
@pytest.mark.parametrize("view", ALIGNED)
def test_any_strides(solver, view):
    """Read in place, not written, whether they are writable or not."""
    for problem in variants(solver):
        w = VIEWS[view](spoilt(problem.weight_shape))
        w.flags.writeable = False
        check(problem, candidates(solver, problem)[0], w, about=view)


@SOLVERS
def test_one_value_for_all(solver):
    problem = oracle.home(solver)
    check(problem, candidates(solver, problem)[0], np.broadcast_to(np.float32(0.75), problem.weight_shape))


@SOLVERS
def test_workers_agree(solver, monkeypatch):
    """1, 2 and 3 workers, however small the units: the same bits."""
    monkeypatch.setattr(packed_formats, "_BUFFER", 1)
    packing._jobs.cache_clear()
    for problem in variants(solver):
        w, candidate = spoilt(problem.weight_shape), candidates(solver, problem)[-1]
        results = {check(problem, candidate, w, threads).tobytes() for threads in (1, 2, 3)}
        assert len(results) == 1, problem.key


@SOLVERS
def test_weights_are_packed_into_memory_that_is_given(solver):
    problem = oracle.home(solver)
    w = oracle.normal(problem.weight_shape, 0)
    form = candidates(solver, problem)[0].packing(problem)
    memory = aligned(form.size + 64, np.uint8)
    memory[:] = 0xA5
    asked = []
    found = form.pack(w, place=lambda size: asked.append(size) or memory[:size])
    assert asked == [form.size] and np.shares_memory(found, memory) and (memory[form.size :] == 0xA5).all()
    np.testing.assert_array_equal(found.view(np.uint32), form.pack(w).view(np.uint32))


@SOLVERS
def test_not_finite(solver):
    """NaN and infinities stay what they are, and keep their payload where nothing is computed."""
    problem = oracle.home(solver)
    w = spoilt(problem.weight_shape)
    w[0, 0, 0, 0], w[-1, -1, -1, -1], w[1, 0, 0, 0] = np.nan, np.inf, -np.inf
    form = (candidate := candidates(solver, problem)[0]).solver.packing(problem, candidate.params, ISA)
    with np.errstate(invalid="ignore"):
        expected = packed.expected(problem, candidate, ISA, w)
    found = form.pack(w)
    if isinstance(form, Transformed):
        assert not np.isfinite(found).all()
        assert np.isfinite(found)[
            np.isfinite(expected)
        ].all()  # and where coefficients are zero, which NumPy multiplies
    else:
        same(found, expected, True, solver.name)


@pytest.mark.parametrize("a", [a for a in winograd_tiles.POINTS if a > 1])
@pytest.mark.parametrize("r, s", [(3, 3), (5, 3), (1, 7), (2, 1)])
def test_every_winograd_tile(a, r, s):
    if a <= max(r, s):
        pytest.skip("the tile is smaller than the kernel")
    rows, cols = (a - r + 1 if r > 1 else 1), (a - s + 1 if s > 1 else 1)
    problem = ConvProblem(1, 2 * ISA.lanes + 1, 24, 24, ISA.lanes + 3, r, s)
    params = winograd.Params(rows, cols, 2, 1, 1, 1)
    check(problem, Candidate(winograd.SOLVER, params), oracle.normal(problem.weight_shape))


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("products", (GAUSS, REGULAR))
@pytest.mark.parametrize("form", [(2, 2), (4, 12), (8, 16), (20, 8), (24, 2), (28, 20), (32, 32), (40, 48), (64, 64)])
def test_every_fft_tile(form, products):
    for taps, dilation in (((min(7, form[0]), min(5, form[1])), (1, 1)), ((1, 1), (3, 2)), ((2, 1), (form[0] - 1, 1))):
        problem = ConvProblem(1, 5, 70, 70, ISA.lanes + 3, *taps, dilation=dilation)
        params = fft.Params(*form, products, 2, 1, 1, 1)
        check(problem, Candidate(fft.SOLVER, params), oracle.normal(problem.weight_shape))


@st.composite
def problems(draw, shape: tuple[int, int, int, int], groups: int) -> ConvProblem:
    """Problems of weights of one shape, which differ in all else."""
    k, cg, r, s = shape
    number = st.integers(1, 3)
    stride = draw(st.sampled_from(((1, 1), (1, 1), (2, 1))))
    return ConvProblem(
        draw(number), cg * groups, draw(st.integers(12, 40)), draw(st.integers(12, 40)), k, r, s, stride,
        tuple(draw(st.integers(0, 2)) for _ in range(4)), (draw(number), draw(number)), groups,
        draw(st.sampled_from(("NCHW", "NHWC"))), "NCHW", None, False, draw(st.integers(1, 2)),
    )  # fmt: skip


@pytest.mark.parametrize("r, s", [(1, 1), (3, 3), (1, 5), (5, 5)])
def test_equal_forms_are_equal_bytes(r, s):
    """Forms of one kind hold what the packed bytes depend on, and nothing else: equal exactly where the bytes are."""
    lanes = ISA.lanes

    @settings(max_examples=12, deadline=None)
    @given(st.data(), st.sampled_from((1, 4, lanes, lanes + 5)), st.sampled_from((3, lanes, 5 * lanes, 6 * lanes)))
    def forms(data, cg, kg):
        groups = data.draw(st.sampled_from((1, 2)))
        shape = groups * kg, cg, r, s
        w = oracle.normal(shape)
        bytes_of = {}
        for _ in range(2):
            problem = data.draw(problems(shape, groups))
            for solver in oracle.SOLVERS:
                if solver.applicable(problem, ISA) is None:
                    for params in list(solver.candidates(problem, ISA))[:5]:
                        form = solver.packing(problem, params, ISA)
                        found = form.pack(w).tobytes()
                        assert bytes_of.setdefault(form, found) == found, (solver.name, params)
        kinds = {(type(form), found) for form, found in bytes_of.items()}  # few weights may be packed alike by two
        forms_of = set(bytes_of)
        if cg == 1:  # panels of a single row are alike, however many vectors or filters they have
            forms_of = {re.sub(r"\b[vn]=\d+", "", str(form)) for form in bytes_of}
        assert len(kinds) >= len(forms_of), f"{len(bytes_of)} forms of equal bytes"

    forms()


def test_panels_are_in_blocks_of_channels_but_where_solvers_read_planes():
    """What the oracle takes from the form, as solvers' sources say it."""
    lanes = ISA.lanes
    problem = ConvProblem(1, 3 * lanes, 14, 14, 2 * lanes, 3, 3)
    found = {}
    for solver in oracle.SOLVERS:
        if solver.applicable(problem, ISA) is None:
            form = candidates(solver, problem)[0].packing(problem)
            if isinstance(form, Panels):
                found[solver.name] = form.block, form.rows - 27 * lanes
    step = im2col.unroll(27 * lanes)
    assert found["direct"] == (lanes, 0) and found["first_layer"] == (1, 0)
    assert found["im2col"] == (1, -27 * lanes % step)


def test_forms_are_shared():
    """Between solvers, sizes of planes, blocks and paddings."""
    problem = ConvProblem(1, 4 * ISA.lanes, 14, 14, 4 * ISA.lanes, 1, 1)
    wide = replace(problem, h=56, w=31, n=3, stride=(2, 2))
    by_name = {solver.name: solver for solver in oracle.SOLVERS}
    forms = {
        by_name[name].packing(option, by_name[name].params(2, 1, cols, block), ISA)
        for name in ("pointwise", "direct", "first_layer")
        for option, cols, block in ((problem, 3, 0), (wide, 5, 2))
    }
    assert len(forms) == 1
    square = replace(problem, r=3, s=3)
    padded = replace(square, h=33, w=20, pads=(1, 1, 1, 1), dilation=(2, 2))
    tiles = {
        winograd.packing(p, winograd.Params(4, 6, 2, *rest), ISA)
        for p in (square, padded)
        for rest in ((1, 2, 3), (4, 5, 6))
    }
    assert len(tiles) == 1
    assert tiles != {winograd.packing(square, winograd.Params(4, 4, 2, 1, 2, 3), ISA)}
