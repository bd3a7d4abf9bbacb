"""Operators of ONNX Runtime's own domain, against their formulas; and forms that are refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.reading.contrib import DOMAIN  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graph.contributed import FORMULAS, agree  # noqa: E402
from support.graphs import made, one_node, run  # noqa: E402

X, W = np.zeros((2, 3, 6, 5), np.float32), np.zeros((4, 3, 3, 3), np.float32)


@pytest.mark.parametrize("case", FORMULAS, ids=lambda case: case.op)
def test_as_the_formula(case):
    model, feed = case.model()
    agree(run(model, feed), case)
    assert not any(node.semantics for node in made(model, feed).nodes)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "said"),
    [
        ("FusedConv", [X, W], {"activation": "Sine"}, "FusedConv node 'y0': Argument 'activation'"),
        ("FusedConv", [X, W], {"power": 3}, "FusedConv node 'y0': Argument 'attributes'"),
        ("DynamicQuantizeLSTM", [*[X] * 3, *[None] * 5, *[X] * 4], {"hidden_size": 3}, "'scales' must be constant"),
        ("QuickGelu", [X], {"beta": 1.5}, "QuickGelu node 'y0' is not written as its operator"),
        ("PackedAttention", [X], {}, "there is no operator 'PackedAttention' of domain 'com.microsoft'"),
        ("Attention", [X] * 3, {}, "Attention node 'y0' is not written as its operator"),
        ("Attention", [X] * 5, {"num_heads": 2}, "Attention node 'y0': Argument 'inputs' must be without a past"),
        ("MultiHeadAttention", [X] * 7, {"num_heads": 2}, "'inputs' must be without a past"),
        ("EmbedLayerNormalization", [X], {"mean": 2}, "is not written as its operator"),
        ("MatMulNBits", [X] * 3, {"K": 4, "N": 4, "block_size": 16}, "'weights' must be constant"),
        ("MatMulNBits", [X] * 3, {"K": 4, "N": 4, "block_size": 16, "bits": 9}, "'MatMulNBits' must be of 2 to 8 bits"),
        (
            "MatMulBnb4",
            [X] * 3,
            {"K": 4, "N": 4, "block_size": 16, "quant_type": 2},
            "'quant_type' must be one of 0, 1",
        ),
        ("RotaryEmbedding", [X, X, X, X], {}, "'cos_cache' must be constant"),
        ("CDist", [X, X], {"metric": "cosine"}, "'metric' must be euclidean or sqeuclidean"),
        ("QAttention", [X] * 5, {"num_heads": 2, "do_rotary": 1}, "'do_rotary' must be left out, not 1"),
    ],
)
def test_forms_that_are_refused(op, arrays, attributes, said):
    model, _ = one_node(op, arrays, 1, 17, domain=DOMAIN, **attributes)
    with pytest.raises(SourceError, match=said):
        read(model)
