"""How work is cut for threads."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.kernels.binding.partition import Grid, best_partition, first_even

counts = st.integers(1, 40)
cycles = st.floats(0, 100)
inspect.signature(Grid)  # makes its `__init__`: hypothesis asks for a signature twice, and finds none the second time


@given(
    grid=st.builds(
        Grid, counts, counts, counts, unit=st.floats(0.1, 100), prepare=cycles, weight_cycles=cycles,
        activation_cycles=cycles, min_tiles=st.integers(1, 9),
    ),
    threads=st.sampled_from((1, 2, 3, 4, 7, 8, 16, 64)),
    data=st.data(),
)  # fmt: skip
def test_no_cut_is_worse_than_none(grid, threads, data):
    uncut = data.draw(st.integers(1, max(1, grid.tiles // grid.min_tiles)))
    blocks, chunks = best_partition(threads, uncut, grid)
    assert uncut <= blocks <= max(uncut, grid.tiles // grid.min_tiles) and 1 <= chunks <= min(grid.panels, threads)
    took, before = (grid.work(threads, *cut) + grid.reading(threads, *cut) for cut in ((blocks, chunks), (uncut, 1)))
    assert took <= before
    assert grid.imbalance(threads, uncut) >= 1
    if threads == 1:
        assert (blocks, chunks) == (uncut, 1)


def test_a_cut_in_two_dimensions_where_neither_has_enough():
    """Four tiles and four panels for 16 workers; eight, where the tiles of a block are prepared by every worker."""
    assert best_partition(16, 1, Grid(planes=1, tiles=4, panels=4)) == (4, 4)
    assert best_partition(8, 1, Grid(planes=1, tiles=8, panels=8, prepare=1.0)) == (8, 1)
    assert best_partition(8, 1, Grid(planes=1, tiles=8, panels=8, prepare=1.0, min_tiles=4)) == (2, 4)


def test_what_is_read_decides_between_even_cuts():
    assert best_partition(2, 1, Grid(planes=1, tiles=8, panels=4)) == (2, 1)  # the fewest chunks
    assert best_partition(2, 1, Grid(planes=1, tiles=1, panels=4)) == (1, 2)
    assert best_partition(2, 1, Grid(planes=2, tiles=8, panels=4)) == (1, 1)
    assert best_partition(2, 1, Grid(planes=1, tiles=8, panels=4, weight_cycles=2.0, activation_cycles=1.0)) == (1, 2)
    assert best_partition(2, 1, Grid(planes=1, tiles=8, panels=4, weight_cycles=1.0, activation_cycles=2.0)) == (2, 1)


@pytest.mark.parametrize(
    ("threads", "units", "found"),
    [(2, 1, (1, 2)), (2, 4, (1, 1)), (4, 1, (1, 3)), (2, 33, (1, 1)), (2, 31, (1, 2))],
)
def test_the_fewest_chunks_that_are_even_or_many(threads, units, found):
    options = [(1, 1), (1, 2), (1, 3)]
    assert first_even(threads, units, options, many=16) == found
    assert first_even(threads, units, options) == (found if units != 33 else (1, 2))
