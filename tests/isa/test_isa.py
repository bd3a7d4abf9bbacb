"""Which instruction set code is generated for, and what is loaded to find out."""

from __future__ import annotations

import pytest

from cpuconv.isa import table
from cpuconv.runtime.target import target


def test_the_set_among_the_features_is_the_one_that_llvm_uses():
    assert table.isa_from_features(target()[2]) in (None, table.isa_from_assembly())


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ("+avx,+avx2,+avx512bw,+avx512f,+fma", "avx512"),
        ("+avx,+avx2,-avx512f,+fma", "avx2"),
        ("+fp-armv8,+neon", "neon"),
        ("+avx,-avx2", None),  # the CPU's name must tell
        ("", None),
    ],
)
def test_the_widest_set_counts(features, name):
    found = table.isa_from_features(features)
    assert (found and found.name) == name
