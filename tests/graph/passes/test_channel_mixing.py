"""1x1 convolutions in front of Resize, and successive linear maps: what becomes of graphs, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.graph.passes import PASSES
from support.graph.expressions import Expression, feed, graph, op
from support.graph.layers import array, same

x, rows = feed(2, 6, 5, 4), feed(2, 3, 8)
wide, small, tokens = feed(1, 100, 3, 4), feed(1, 6, 6, 8), feed(2, 12, 8)
MIX, MIX_BOTH = array(5, 100, 1, 1), array(5, 106, 1, 1)


def enlarged(sizes: list[int] | None = None, **attributes: object) -> Expression:
    """Planes that are enlarged, to twice the size or the one given."""
    scales = None if sizes else np.array([1.0, 1.0, 2.0, 2.0])
    return op.Resize(wide, None, scales, *([np.array(sizes)] if sizes else []), **attributes)


def twice(value: Expression) -> Expression:
    """A value that has two readers."""
    return value + op.Exp(value)


CASES: list[tuple[Expression, str]] = [
    (op.Relu(op.Conv(enlarged(), MIX, array(5))), "Conv Resize Relu"),
    (op.Conv(enlarged(mode="linear"), MIX), "Conv Resize"),
    (op.Conv(op.Concat(enlarged(), small, axis=1), MIX_BOTH, array(5)), "Conv Conv Resize Add"),
    (
        op.Conv(op.Concat(enlarged(), small, enlarged(mode="cubic"), axis=-3), np.concatenate([MIX_BOTH, MIX], 1)),
        "Conv Conv Resize Conv Resize Add Add",
    ),
    (
        op.Conv(op.Concat(enlarged(), enlarged(mode="linear"), axis=1), np.concatenate([MIX, MIX], 1), array(5)),
        "Conv Resize Conv Resize Add",
    ),
    (op.Conv(enlarged(sizes=[1, 100, 7, 9]), MIX), "Conv Resize"),
    (op.Conv(op.Resize(wide, None, np.array([2.0, 2.0]), axes=[2, 3]), MIX), "Conv Resize"),
    (op.Conv(op.Resize(wide, None, np.array([1, 1, 0.5, 1])), MIX), "Resize Conv"),
    (op.Conv(op.Resize(wide, None, np.array([1, 1.005, 2, 2]), mode="linear"), MIX), "Resize Conv"),
    (
        op.Conv(op.Concat(enlarged(), small, small, axis=1), array(5, 112, 1, 1)),
        "Concat Conv Conv Resize Add",
    ),
    (op.Conv(enlarged(), array(5, 100, 3, 3)), "Resize Conv"),
    (op.Conv(enlarged(), MIX, strides=[2, 2]), "Resize Conv"),
    (op.Conv(twice(enlarged()), MIX), "Resize Exp Add Conv"),
    (op.Linear(op.Linear(rows, array(8, 50), array(50)), array(50, 6), array(6)), "Linear"),
    (op.Linear(op.Linear(rows, array(8, 2)), array(2, 9)), "Linear Linear"),
    (op.Linear(op.Linear(rows, array(8, 50), activation=("relu",)), array(50, 6)), "Linear Linear"),
    (op.Conv(op.Conv(x, array(50, 6, 1, 1)), array(5, 50, 1, 1), array(5)), "Conv"),
    (op.Conv(op.Conv(x, array(50, 6, 3, 3)), array(5, 50, 1, 1)), "Conv Conv"),
    (
        op.Conv(op.Reshape(op.Transpose(op.Linear(tokens, array(8, 50)), perm=[0, 2, 1]), [2, 50, 3, 4]), MIX[:, :50]),
        "Linear Transpose Reshape",
    ),
    (
        op.Linear(op.Transpose(op.Conv(x, array(50, 6, 1, 1), array(50)), perm=[0, 2, 3, 1]), array(50, 5)),
        "Conv Transpose",
    ),
    (
        op.Conv(op.Reshape(op.Linear(tokens, array(8, 50)), [2, 50, 3, 4]), MIX[:, :50]),
        "Linear Reshape Conv",
    ),
]


@pytest.mark.parametrize(("output", "after"), CASES)
def test_rewrite(output, after):
    before = graph(output)
    made = PASSES["channel_mixing"](before)
    assert " ".join(node.op for node in made.nodes) == after
    assert PASSES["channel_mixing"](made) is made
    same(before, made)
