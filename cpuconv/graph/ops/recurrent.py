"""Recurrent layers: LSTM, GRU and RNN, forward, backward or both ways.

Source: ONNX operators of these names. What all inputs give to the gates is one product; then the steps follow one by
one, both directions at once, the backward one on a sequence that is turned around. They compute in the type of their
operands, as they run between kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import Arrays, Inputs, Op, given, is_float

Function = Callable[[np.ndarray], np.ndarray]

# --- activations ----------------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """A function of x, alpha and beta, and the defaults of those that it has."""

    function: Callable[..., np.ndarray]
    alpha: float | None = None
    beta: float | None = None


ACTIVATIONS = {
    "Sigmoid": _Form(lambda x, a, b: 0.5 * np.tanh(0.5 * x) + 0.5),
    "Tanh": _Form(lambda x, a, b: np.tanh(x)),
    "Relu": _Form(lambda x, a, b: np.maximum(x, 0)),
    "Softsign": _Form(lambda x, a, b: x / (1 + np.abs(x))),
    "Softplus": _Form(lambda x, a, b: np.logaddexp(x, x.dtype.type(0))),
    "Affine": _Form(lambda x, a, b: a * x + b, 1.0, 0.0),
    "LeakyRelu": _Form(lambda x, a, b: np.where(x < 0, a * x, x), 0.01),
    "ThresholdedRelu": _Form(lambda x, a, b: np.where(x > a, x, 0), 1.0),
    "ScaledTanh": _Form(lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "HardSigmoid": _Form(lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "Elu": _Form(lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 1.0),
}


def _activations(node: Node, defaults: tuple[str, ...]) -> list[Function]:
    """The functions of the cell, the same in both directions.

    The gates' inputs are clipped where asked for, but not a cell's new state, as in ONNX Runtime.
    """
    count = len(defaults) * _directions(node)
    names = tuple(node["activations"] or defaults * 2)[:count]  # an RNN has two by default, whatever its directions
    if len(names) != count or not set(names) <= ACTIVATIONS.keys():
        raise ValueError(f"the activations must be {len(defaults)} a direction, of {', '.join(ACTIVATIONS)}")
    alphas, betas = iter(node["activation_alpha"] or ()), iter(node["activation_beta"] or ())
    stated = [(name, *_scalars(ACTIVATIONS[name], alphas, betas)) for name in names]
    if stated[: len(defaults)] * _directions(node) != stated:
        raise ValueError("both directions must have the same activations")
    clips = (node["clip"], node["clip"], None)
    functions = [ACTIVATIONS[name].function for name in names]
    return [_applied(f, a, b, clip) for f, (_, a, b), clip in zip(functions, stated, clips, strict=False)][
        : len(defaults)
    ]


def _scalars(form: _Form, alphas: Iterator[float], betas: Iterator[float]) -> tuple[float | None, float | None]:
    """Those stated in turn for the functions that have them, else the defaults."""
    alpha = None if form.alpha is None else next(alphas, form.alpha)
    return alpha, None if form.beta is None else next(betas, form.beta)


def _applied(
    function: Callable[..., np.ndarray], alpha: float | None, beta: float | None, clip: float | None
) -> Function:
    if not clip:
        return lambda x: function(x, alpha, beta)
    return lambda x: function(np.clip(x, -clip, clip), alpha, beta)


# --- cells ----------------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """What steps multiply with: of the state (directions, hidden, gates x hidden), its bias, and the peepholes."""

    state: np.ndarray
    bias: np.ndarray
    peepholes: np.ndarray | None


States = tuple[np.ndarray, ...]  # (directions, batch, hidden) each
Step = Callable[[np.ndarray, States, Weights], States]  # of what the inputs give to the gates


class Cell(NamedTuple):
    """A kind of layer: its gates, its states, its activations, and what makes its step of a node and of these."""

    gates: int
    states: int
    activations: tuple[str, ...]
    step: Callable[..., Step]


def _rnn_step(node: Node, f: Function) -> Step:
    def step(fed: np.ndarray, states: States, weights: Weights) -> States:
        return (f(fed + states[0] @ weights.state + weights.bias),)

    return step


def _gru_step(node: Node, f: Function, g: Function) -> Step:
    """Gates: update, reset, hidden. The reset comes before the product with the state, or behind it."""

    def step(fed: np.ndarray, states: States, weights: Weights) -> States:
        (h,), kept = states, 2 * states[0].shape[-1]
        if node["linear_before_reset"]:
            product = h @ weights.state + weights.bias
            z, r = np.split(f(fed[..., :kept] + product[..., :kept]), 2, -1)
            hidden = r * product[..., kept:]
        else:
            product = h @ weights.state[..., :kept] + weights.bias[..., :kept]
            z, r = np.split(f(fed[..., :kept] + product), 2, -1)
            hidden = (r * h) @ weights.state[..., kept:] + weights.bias[..., kept:]
        return ((1 - z) * g(fed[..., kept:] + hidden) + z * h,)

    return step


def _lstm_step(node: Node, f: Function, g: Function, h: Function) -> Step:
    """Gates: input, output, forget, cell. Peepholes let the gates see the cell, the output gate the new one."""

    def step(fed: np.ndarray, states: States, weights: Weights) -> States:
        i, o, forget, new = np.split(fed + states[0] @ weights.state + weights.bias, 4, -1)
        see_i = see_o = see_forget = np.zeros((), fed.dtype)
        if weights.peepholes is not None:
            see_i, see_o, see_forget = np.split(weights.peepholes, 3, -1)
        i = f(i + see_i * states[1])
        forget = 1 - i if node["input_forget"] else f(forget + see_forget * states[1])
        cell = forget * states[1] + i * g(new)
        return f(o + see_o * cell) * h(cell), cell

    return step


CELLS = {
    "RNN": Cell(1, 1, ("Tanh",), _rnn_step),
    "GRU": Cell(3, 1, ("Sigmoid", "Tanh"), _gru_step),
    "LSTM": Cell(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step),
}

# --- layers ---------------------------------------------------------------------------------------------------------


def _directions(node: Node) -> int:
    return 2 if node["direction"] == "bidirectional" else 1


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    x, w, r = inputs[:3]
    cell, directions = CELLS[node.op], _directions(node)
    _activations(node, cell.activations)
    (steps, batch, size), hidden = x.shape, r.shape[-1]
    if node["layout"]:
        steps, batch = batch, steps
    rows, state = cell.gates * hidden, (directions, batch, hidden)
    first = (batch, directions, hidden) if node["layout"] else state
    needed = [(directions, rows, size), (directions, rows, hidden), (directions, 2 * rows), (batch,)]
    needed += [first] * cell.states + [(directions, 3 * hidden)]
    for value, shape in zip(inputs[1:], needed, strict=False):
        if value is not None and value.shape != shape:
            raise ValueError(f"{value} must be of shape {shape}")
    if node["hidden_size"] not in (None, hidden):
        raise ValueError(f"'hidden_size' must be {hidden}, not {node['hidden_size']}")
    y = (batch, steps, directions, hidden) if node["layout"] else (steps, directions, batch, hidden)
    return [Value(y, x.dtype), *[Value(first, x.dtype)] * cell.states]


def _order(node: Node, steps: int, lengths: np.ndarray) -> np.ndarray:
    """(directions, steps, batch): the time that each direction comes to; its own inverse."""
    forward = np.broadcast_to(np.arange(steps)[:, None], (steps, lengths.size))
    backward = np.where(forward < lengths, lengths - 1 - forward, forward)
    return np.stack({"forward": [forward], "reverse": [backward]}.get(node["direction"], [forward, backward]))


def layer(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """The states after every step, zeros behind the end of a sequence; and the last states."""
    cell, count = CELLS[node.op], 5 + CELLS[node.op].states
    single = [
        array.astype(np.result_type(array, np.float32), copy=False)
        if array is not None and is_float(array.dtype)
        else array
        for array in arrays
    ]
    (x, w, r), bias, lengths = single[:3], given(single, 3), given(single, 4)
    x = x.swapaxes(0, 1) if node["layout"] else x
    (steps, batch, size), (directions, rows, hidden) = x.shape, r.shape
    bias = np.zeros((directions, 2 * rows), x.dtype) if bias is None else bias
    given_bias, state_bias = np.split(bias[:, None], 2, -1)
    weights = Weights(r.swapaxes(1, 2), state_bias, _peepholes(given(single, count)))
    states = tuple(
        np.zeros((directions, batch, hidden), x.dtype)
        if state is None
        else state.swapaxes(0, 1)
        if node["layout"]
        else state
        for state in (given(single, at) for at in range(5, count))
    )
    ends = np.full(batch, steps) if lengths is None else lengths
    order = _order(node, steps, ends)
    read = x[order, np.arange(batch)].reshape(directions, steps * batch, size)
    fed = (read @ w.swapaxes(1, 2) + given_bias).reshape(directions, steps, batch, rows)

    step, y = cell.step(node, *_activations(node, cell.activations)), np.zeros((*fed.shape[:3], hidden), x.dtype)
    for at in range(steps):
        new = step(fed[:, at], states, weights)
        if lengths is None:
            states, y[:, at] = new, new[0]
        else:
            going = (at < ends)[:, None]
            states = tuple(np.where(going, after, before) for after, before in zip(new, states, strict=True))
            y[:, at] = np.where(going, new[0], 0)
    y = y[np.arange(directions)[:, None, None], order, np.arange(batch)]
    if node["layout"]:
        return y.transpose(2, 1, 0, 3), *(state.swapaxes(0, 1) for state in states)
    return y.transpose(1, 0, 2, 3), *states


def _peepholes(stated: np.ndarray | None) -> np.ndarray | None:
    return None if stated is None else stated[:, None]


_COMMON = {
    "activation_alpha": None,
    "activation_beta": None,
    "activations": None,
    "clip": None,
    "direction": "forward",
    "hidden_size": None,
    "layout": 0,
}


def _op(name: str, **attributes: object) -> Op:
    return Op(name, _infer, layer, {**_COMMON, **attributes}, mixed=True, widened=False)


OPS = (
    _op("LSTM", input_forget=0),
    _op("GRU", linear_before_reset=0),
    _op("RNN", activations=["Tanh", "Tanh"]),
)
