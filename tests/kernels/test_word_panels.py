"""Weights in words: the orders in which single products read them."""

from __future__ import annotations

import numpy as np

from cpuconv.elements import F16, S8
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.packing.word_panels import WordPanels
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types

LANES = 4  # of NEON


def test_words_of_sdot_are_the_weights_of_nchw44_dot() -> None:
    """[K/4][C/4][R][S][4 of K][4 of C]: a lane has four input channels, as a pixel of NCHW44 lays them side by side."""
    problem = ConvProblem(1, 12, 5, 5, 8, 3, 2, types=Types.parse("s8:s8:s8"))
    w = np.random.default_rng(0).integers(-128, 128, problem.weight_shape).astype(S8.dtype)
    packed = WordPanels.of(problem, LANES, 1, BY_NAME["sdot"], block=1).pack(w).view(S8.dtype)
    k, c, r, s = w.shape
    dot = w.reshape(k // 4, 4, c // 4, 4, r, s).transpose(0, 2, 4, 5, 1, 3)
    np.testing.assert_array_equal(packed.reshape(dot.shape), dot)


def test_elements_of_a_word_follow_each_other_for_fmlal() -> None:
    """[K/(2·4)][word of C][2 vectors][2 channels][4 of K], the last channel of an odd number zero."""
    problem = ConvProblem(1, 5, 5, 5, 8, 1, 1, types=Types.parse("f16:f16:f16"))
    w = np.random.default_rng(0).standard_normal(problem.weight_shape).astype(F16.dtype)
    packed = WordPanels.of(problem, LANES, 2, BY_NAME["fmlal"]).pack(w).view(F16.dtype)
    filled = np.zeros((8, 6), F16.dtype)
    filled[:, :5] = w[:, :, 0, 0]
    np.testing.assert_array_equal(packed.reshape(3, 2, 2, 4), filled.reshape(2, 4, 3, 2).transpose(2, 0, 3, 1))
