"""Strategies of cases for the graph's operators on sequences and boxes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from support.graph.draws import FLAG, GENERATORS, INT, INT32, numbers
from support.graphs import Case

_PLAIN = ("Tanh", "Sigmoid", "Relu", "Softsign", "Softplus")
_SCALED = {"Affine": (0.5, 0.25), "LeakyRelu": (0.1,), "ThresholdedRelu": (0.3,), "ScaledTanh": (0.9, 0.6)}
_SCALED |= {"HardSigmoid": (0.3, 0.4), "Elu": (0.7,)}


@st.composite
def layer(draw, gates, states, peepholes=False, **attributes):
    """A recurrent layer, with any of its optional inputs."""
    rng, direction = draw(GENERATORS), draw(st.sampled_from(("forward", "reverse", "bidirectional")))
    directions = 2 if direction == "bidirectional" else 1
    steps, batch, size, hidden = (draw(st.integers(1, 4)) for _ in range(4))
    state = (directions, batch, hidden)
    optional = [(directions, 2 * gates * hidden), None, *[state] * states]
    optional += [(directions, 3 * hidden)] if peepholes else []
    arrays = [numbers(rng, shape) / 2 if shape and draw(st.booleans()) else None for shape in optional]
    if draw(st.booleans()):
        arrays[1] = rng.integers(1, steps + 1, batch).astype(INT32)
    weights = [numbers(rng, (directions, gates * hidden, depth)) / 2 for depth in (size, hidden)]
    made = {"direction": direction, "hidden_size": hidden, **{k: draw(v) for k, v in attributes.items()}}
    if draw(st.booleans()):
        made["clip"] = 0.75
    if draw(st.booleans()):
        made |= _activations(draw, {1: 1, 3: 2, 4: 3}[gates], directions)
        if "Softplus" in made["activations"]:
            made.setdefault("clip", 50.0)  # that of ONNX Runtime is infinite from 89 on
    return Case([numbers(rng, (steps, batch, size)), *weights, *arrays], made, 1 + states)


@st.composite
def quantised_lstm(draw):
    """An LSTM whose state is multiplied as bytes, given what its inputs give to the gates."""
    case, rng = draw(layer(4, 2, peepholes=True, input_forget=FLAG)), draw(GENERATORS)
    x, w, r, bias, *others = case.arrays
    directions, rows, _ = r.shape
    hidden = draw(st.integers(1, 40))
    (steps, batch, _), rows = x.shape, 4 * hidden
    sizes = [None, (directions, batch, hidden), (directions, batch, hidden), (directions, 3 * hidden)]
    others = [
        array if array is None or shape is None else numbers(rng, shape) / 2
        for array, shape in zip(others, sizes, strict=True)
    ]
    fed, weights = numbers(rng, (steps, batch, directions * rows)), rng.integers(-128, 128, (directions, hidden, rows))
    scales = rng.uniform(0.0002, 0.002, (directions, rows)).astype(np.float32)
    attributes = {**case.attributes, "hidden_size": hidden}
    points = rng.integers(-20, 20, (directions, rows)).astype(np.float32)
    return Case([fed, weights.astype(np.int8), scales, points, *others], attributes, 3)


def _activations(draw, count, directions):
    names = [draw(st.sampled_from((*_PLAIN, *_SCALED))) for _ in range(count)]
    alphas = [_SCALED[name][0] for name in names if name in _SCALED]
    betas = [_SCALED[name][1] for name in names if len(_SCALED.get(name, ())) > 1]
    lists = {"activations": names, "activation_alpha": alphas, "activation_beta": betas}
    return {name: stated * directions for name, stated in lists.items() if stated}


@st.composite
def boxes(draw):
    rng, (images, classes, count) = draw(GENERATORS), [draw(st.integers(1, high)) for high in (2, 3, 20)]
    centers, center_form = rng.uniform(0, 4, (images, count, 2)), draw(FLAG)
    sides = rng.uniform(0.5, 3, (images, count, 2))
    corners = [centers, sides] if center_form else [centers - sides / 2, centers + sides / 2]
    scores = rng.random((images, classes, count)).round(1)  # with equal ones among them
    limits = [np.array([draw(st.integers(0, 6))], INT)]
    limits += [
        np.array([draw(st.sampled_from((0.0, 0.3, 0.5, 1.0)))], np.float32) for _ in range(draw(st.integers(0, 2)))
    ]
    arrays = [np.concatenate(corners, -1).astype(np.float32), scores.astype(np.float32), *limits]
    return Case(arrays, {"center_point_box": center_form})
