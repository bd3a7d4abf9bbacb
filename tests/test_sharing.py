"""How work is cut for threads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.solvers.shared.sharing import first_even, shortest

counts = st.integers(1, 40)


def slowest(threads: int, planes: int, blocks: int, chunks: int, tiles: int, panels: int) -> int:
    """Tiles times panels of the worker that has the most units, each as large as the largest."""
    units = -(-planes * blocks * chunks // threads)
    return units * -(-tiles // blocks) * -(-panels // chunks)


@given(threads=st.integers(1, 8), planes=counts, tiles=counts, panels=counts, data=st.data())
def test_the_slowest_worker_has_no_more_than_uncut(threads, planes, tiles, panels, data):
    given_blocks = data.draw(st.integers(1, tiles))
    blocks, chunks = shortest(threads, planes, given_blocks, tiles, panels)
    assert given_blocks <= blocks <= tiles and 1 <= chunks <= min(panels, threads)
    uncut = slowest(threads, planes, given_blocks, 1, tiles, panels)
    found = slowest(threads, planes, blocks, chunks, tiles, panels)
    assert found < uncut or (found == uncut and (blocks, chunks) == (given_blocks, 1))


def test_finer_blocks_come_before_chunks_that_read_them_again():
    assert shortest(threads=2, planes=1, blocks=1, tiles=8, panels=4) == (2, 1)
    assert shortest(threads=2, planes=1, blocks=1, tiles=1, panels=4) == (1, 2)
    assert shortest(threads=2, planes=2, blocks=1, tiles=8, panels=4) == (1, 1)


@pytest.mark.parametrize(
    ("threads", "units", "found"),
    [(2, 1, (1, 2)), (2, 4, (1, 1)), (4, 1, (1, 3)), (2, 33, (1, 1)), (2, 31, (1, 2))],
)
def test_the_fewest_chunks_that_are_even_or_many(threads, units, found):
    options = [(1, 1), (1, 2), (1, 3)]
    assert first_even(threads, units, options, many=16) == found
    assert first_even(threads, units, options) == (found if units != 33 else (1, 2))
