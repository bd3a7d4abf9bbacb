"""Weights in words: the orders in which single products read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpuconv.elements import F16, S8
from cpuconv.kernels.emit.product import BY_NAME, JOINED
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


FLIPPED = Types.parse("u8:s8:u8")
WORD = ConvProblem(1, 8, 5, 5, 4, 1, 1, types=FLIPPED)  # two words of one vector


def panels(w: np.ndarray, block: int = 0) -> np.ndarray:
    """(words, 2 vectors of a word, 4 of K, 4 channels) of 1x1 filters."""
    problem = replace(WORD, c=w.shape[1], k=len(w))
    packed = WordPanels.of(problem, LANES, 1, BY_NAME["vpmaddubsw"], block).pack(w[..., None, None])
    return packed.view(S8.dtype).reshape(-1, 2, LANES, 4)


@pytest.mark.parametrize(
    ("filter_", "joined"),
    [
        ([64] * 4 + [0, 0, 0, 0], True),  # 128 of a pair
        ([65, 64, 0, 0] + [0] * 4, False),
        ([-64, -64, 0, 0, -64, -64, 0, 0], True),  # 256 in all
        ([-64, -65, 0, 0] + [0] * 4, False),
        ([127, -127, 0, 0, 1, 1, 0, 0], True),
        ([127, -127, 0, 0, 1, 1, -1, 0], True),  # what meets another pair does not count
        ([127, -127, 0, 0, 1, 2, 0, 0], False),
        ([0, 0, -128, 127, 0, 0, 0, 1], True),
        ([0, 0, -128, 127, 0, 0, 1, 1], False),
    ],
)
def test_two_words_are_joined_where_their_sums_fit(filter_, joined):
    """Whatever pixels are: sums of pairs in a product, and of four with what is added, which is that of flips."""
    w = np.zeros((LANES, 8), np.int8)
    w[1] = filter_
    packed = panels(w)
    assert (packed[1, 1, -1, -1] == JOINED) == joined
    if joined:
        np.testing.assert_array_equal(packed[0].swapaxes(0, 1).reshape(LANES, 8), w)
        pairs = w.astype(int).reshape(LANES, 2, 2, 2)
        added = packed[1, 0].copy().view(np.int16)
        below, above = np.minimum(pairs, 0), np.maximum(pairs, 0)
        np.testing.assert_array_equal(added, (-128 * above - 127 * below).sum((1, 3)))
        for pixels in (0, 255):  # least and most of each sign alone
            for part in (above, below):
                assert np.all(np.abs(pixels * part.sum(3)) < 1 << 15)
        most = 255 * above.sum((1, 3)) + added, 255 * below.sum((1, 3)) + added
        assert np.max(most) < 1 << 15 and np.min(most) >= -1 << 15
    else:
        np.testing.assert_array_equal(
            packed[:, 0], np.abs(w.astype(int)).astype(np.int8).reshape(LANES, 2, 4).swapaxes(0, 1)
        )


def test_a_segment_is_joined_whole_or_not_at_all():
    """Of three words the third never is joined; where one pair is too large, no word of its segment is."""
    rng = np.random.default_rng(1)
    w = rng.integers(-64, 64, (LANES, 6 * 4)).astype(np.int8)
    packed = panels(w, 3)
    assert packed[1, 1, -1, -1] == packed[4, 1, -1, -1] == JOINED
    for last in (2, 5):
        np.testing.assert_array_equal(packed[last, 0], np.abs(w[:, 4 * last : 4 * last + 4]))
    w[0, 4 * 4 : 4 * 4 + 2] = 127
    again = panels(w, 3)
    np.testing.assert_array_equal(again[:3], packed[:3])
    assert again[4, 1, -1, -1] != JOINED
    assert JOINED not in np.unique(again[3:, 1])
