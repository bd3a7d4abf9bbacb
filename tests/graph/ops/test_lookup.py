"""Functions of bytes by tables: runs of every length around those that are looked up together."""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ops import TABLE
from support.graph import lowered


def test_every_length():
    rng, node = np.random.default_rng(0), TABLE["Lookup"].node(["x", "table"], ["y"])
    table = rng.permutation(256).astype(np.uint8)
    for count in (1, 31, 32, 33, 63, 64, 65, 1000):
        x = np.resize(rng.permutation(256), count).astype(np.uint8)
        assert lowered.check(node, [x, table], (1,)) == 1
