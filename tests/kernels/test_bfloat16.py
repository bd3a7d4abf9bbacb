"""bfloat16: rounding, widening in vectors, and a vector times a matrix that is rounded once."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.conv.recipe import padded_bias
from cpuconv.elements import BF16, F32, from_bfloat16, to_bfloat16
from cpuconv.isa import current
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Ref
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.products.matvec import MatvecStripTile, linear_step, matvec_strip, packing
from cpuconv.network.running.recording import Recording
from cpuconv.problem import activation as activations
from cpuconv.problem.arrays import address
from support import guarded

ISA = current()
LANES = ISA.lanes
STEP = 2.0**-8  # largest relative error of one rounding to bfloat16


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0x3F800000, 0x3F80), (0x3F808000, 0x3F80), (0x3F818000, 0x3F82),  # exact; halfway, down and up to the even one
        (0x3F808001, 0x3F81), (0x3F80FFFF, 0x3F81), (0x3FFFFFFF, 0x4000), (0xBF818000, 0xBF82),
        (0x7F7FFFFF, 0x7F80), (0x7F800000, 0x7F80), (0xFF800000, 0xFF80), (0x80000000, 0x8000), (0x00000001, 0x0000),
    ],
)  # fmt: skip
def test_the_nearest_is_taken_and_ties_go_to_the_even_one(given: int, expected: int) -> None:
    assert to_bfloat16(np.array([given], np.uint32).view(np.float32)).tolist() == [expected]


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFF800001])
def test_nan_stays_nan(bits: int) -> None:
    assert np.isnan(from_bfloat16(to_bfloat16(np.array([bits], np.uint32).view(np.float32)))).all()


def test_rounding_moves_a_number_by_at_most_half_a_step() -> None:
    numbers = np.random.default_rng(0).standard_normal(10_000, np.float32)
    back = from_bfloat16(to_bfloat16(numbers))
    assert (np.abs(back - numbers) <= STEP * np.abs(numbers)).all()
    np.testing.assert_array_equal(from_bfloat16(to_bfloat16(back)), back)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("edge", guarded.EDGES)
@pytest.mark.parametrize("columns", [1, LANES - 1, LANES, LANES + 1, 3 * LANES + 2])
@pytest.mark.parametrize("depth", [1, 3, 4, 7, 257])
def test_a_vector_times_a_rounded_matrix(depth: int, columns: int, edge: str, threads: int) -> None:
    """As the float64 product with the rounded weights but for sums in float32; with the given ones but for one rounding
    of each weight."""
    rng = np.random.default_rng(depth * columns)
    x, w = rng.standard_normal((1, depth), np.float32), rng.standard_normal((depth, columns), np.float32)
    bias, residual = rng.standard_normal(columns, np.float32), rng.standard_normal((1, columns), np.float32)
    form = packing(ISA, depth, columns, w=BF16)
    packed = form.pack(w.T[:, :, None, None], threads)
    assert packed.nbytes == form.size == packing(ISA, depth, columns).size // 2 and packed.dtype == BF16.dtype
    arrays = {"x": x, "w": packed, "bias": padded_bias(columns, bias), "residual": residual}
    memory = {name: guarded.place(array, edge) for name, array in arrays.items()}
    memory["y"] = guarded.room(F32.bytes * columns, edge)
    places = (
        TensorView.plain(Ref(name), (1, size)) for name, size in (("x", depth), ("y", columns), ("residual", columns))
    )
    vector, result, added = places
    step = linear_step(
        Processor(ISA, threads), vector, Ref("w"), result, Ref("bias"), added, activations.normalize("relu"), BF16
    )
    Recording.of([step], threads).bind({name: address(array) for name, array in memory.items()}).run()
    y = memory["y"].view(np.float32)

    def expected(weights: np.ndarray) -> np.ndarray:
        return np.maximum(x.astype(np.float64) @ weights.astype(np.float64) + bias + residual, 0)[0]

    magnitude = (np.abs(x).astype(np.float64) @ np.abs(w))[0]
    sums = (depth + 4) * 2.0**-24 * (magnitude * (1 + STEP) + np.abs(bias) + np.abs(residual[0]))
    assert (np.abs(y - expected(from_bfloat16(to_bfloat16(w)))) <= sums).all()
    assert (np.abs(y - expected(w)) <= sums + STEP * magnitude).all()


def test_weights_are_widened_as_they_are_loaded() -> None:
    """Half as many bytes a vector: the loads of weights widen, and no others."""
    tiles = (MatvecStripTile(LANES, "columns", 1, True, w=w) for w in (F32, BF16))
    plain, narrow = map(matvec_strip.assembly, tiles)
    assert plain != narrow
    if ISA.name in ("avx512", "avx2"):
        assert "vpmovzxwd" in narrow and "vpmovzxwd" not in plain
