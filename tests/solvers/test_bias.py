"""The bias as kernels read it, by whole vectors: none of them reads past its end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cpuconv.conv.recipe import Candidate, padded_bias
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from support import oracle
from support.guarded import EDGES


@pytest.mark.parametrize(("k", "groups"), [(34, 2), (33, 1), (37, 37), (20, 4), (51, 3), (64, 2)])
def test_a_bias_is_as_long_as_kernels_read_it(k, groups):
    """By whole vectors from the first filter of each group, the last one too."""
    bias, filters, lanes = oracle.normal((k,)), k // groups, current().lanes
    padded = padded_bias(k, bias, groups)
    assert padded.size >= k - filters + -(-filters // lanes) * lanes and padded.size >= -(-k // lanes) * lanes
    np.testing.assert_array_equal(padded[:k], bias)
    assert not padded[k:].any() and not padded_bias(k, None, groups).any()


def test_the_last_group_ends_within_a_vector():
    lanes = current().lanes
    problem = ConvProblem(1, 6, 7, 9, 2 * lanes + 2, 3, 3, pads=(1, 1, 1, 1), groups=2)
    for solver in oracle.SOLVERS:
        if solver.applicable(problem, current()) is None:
            for params in itertools.islice(solver.candidates(problem, current()), 4):
                for edge in EDGES:
                    oracle.check_apart(problem, Candidate(solver, params), edge=edge)
