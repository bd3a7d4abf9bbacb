"""What is said of rewrites: which nodes became which, and how many of each kind."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np

from cpuconv.graph import passes
from cpuconv.graph.ir import Graph
from cpuconv.graph.passes import NAMES
from cpuconv.network.notes import Note, note
from cpuconv.network.reports.rewrites import summary
from support.graph.expressions import feed, graph, op
from support.graph.layers import array, conv, normalized

x = feed(2, 6, 5, 4)


def noted(before: Graph, skip: Collection[str] = ()) -> tuple[Graph, list[Note]]:
    notes: list[Note] = []
    return passes.apply(before, skip, partial(note, notes)), notes


def test_notes_say_what_became_of_what():
    made, notes = noted(graph(op.Relu(normalized(conv(op.Identity(op.Exp(x))), 7))))
    assert " ".join(node.op for node in made.nodes) == "Exp Conv"
    assert [(note.rewrite, note.text) for note in notes] == [
        ("noops", "Identity 'v1' went: not needed."),
        ("weights", "Conv 'v2', BatchNormalization 'v3' became Conv 'v3'."),
        ("epilogues", "Conv 'v3', Relu 'y0' became Conv 'y0'."),
    ]
    assert summary(notes) == [
        ("noops", "1 Identity removed"),
        ("weights", "1 BatchNormalization into Conv"),
        ("epilogues", "1 Relu into Conv"),
    ]


def test_notes_are_counted_by_rewrite():
    a = op.Relu(conv(x, array(6, 6, 3, 3)))
    b = op.Relu(conv(a, array(6, 6, 3, 3) - 1) + a)
    c = op.Relu(conv(b, array(6, 6, 3, 3) - 1) + op.Exp(op.MatMul(b, array(4, 4))))
    _, notes = noted(graph(c * op.Sigmoid(c)))
    told = summary(notes)
    assert ("epilogues", "3 Relu and 2 Add into Conv") in told
    assert ("linear", "1 (MatMul) became Linear") in told
    assert ("formulas", "1 (Sigmoid, Mul) became Swish") in told
    (made,) = (note for note in notes if note.rewrite == "linear")
    assert (made.lost, made.gained) == ({"MatMul": 1}, {"Linear": 1})


def test_nothing_is_said_of_constants_that_are_equal():
    before = graph(x * array(6, 1, 1) + op.Exp(x) * array(6, 1, 1))
    _, notes = noted(before, [name for name in NAMES if name != "equal_constants"])
    assert not notes


def test_nothing_is_said_where_nothing_changes():
    """Integers are left alone."""
    seven = np.array(7)
    made, notes = noted(graph(x / np.array(6) * op.Clip(x + 3, 0, seven) / np.array(6) * 2 / 2, dtype=np.int64))
    assert len(made.nodes) == 7 and not notes
