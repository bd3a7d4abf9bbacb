"""Recurrent layers: LSTM, GRU and RNN, forward, reverse or bidirectional.

Source: ONNX operators of these names. One matrix multiplication computes the gate sums of all inputs. Then the steps
are computed one by one, both directions simultaneously; the reverse direction reads the sequence reversed. A cell is
defined once, as expressions of its sums, which the reference evaluates and the kernel emits. References compute in the
type of their operands, as they may run between kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from cpuconv.conv.choice.layout_candidates import in_own_layouts
from cpuconv.conv.choice.rows import of_rows, rows_operand, rows_problem
from cpuconv.conv.choice.target import PRECISION_BF16, Target
from cpuconv.elements import BF16, F32
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import Arrays, Inputs, Op, given, is_float
from cpuconv.graph.ops.elementwise_forms import FORMS
from cpuconv.graph.ops.recurrent_states import StateProducts, States
from cpuconv.graph.ops.solver_calls import steps
from cpuconv.kernels.binding.steps import Operands, Ref, Step
from cpuconv.kernels.binding.tensor_view import DENSE, FLOAT32, NARROW
from cpuconv.kernels.elementwise.expression import Expression, apply
from cpuconv.kernels.recurrent.cells import CELLS, Function
from cpuconv.kernels.recurrent.recurrent import Rows, packed
from cpuconv.kernels.recurrent.recurrent_bf16 import packed_bf16
from cpuconv.kernels.recurrent.recurrent_cell import PEEPHOLES, Stage
from cpuconv.kernels.recurrent.tensors import Recurrence, Size, Tensors, recurrence_steps, workspace
from cpuconv.problem.integers import divide

# --- activations ----------------------------------------------------------------------------------------------------

_SCALARS: dict[str, dict[str, float]] = {
    "Affine": {"alpha": 1.0, "beta": 0.0},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "ScaledTanh": {"alpha": 1.0, "beta": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Elu": {"alpha": 1.0},
}
"""Scalars of activations, with their defaults."""

_ACTIVATIONS: dict[str, Callable[..., Expression]] = {
    name: FORMS[name]
    for name in (
        "Sigmoid",
        "Tanh",
        "Relu",
        "Softsign",
        "Softplus",
        "LeakyRelu",
        "ThresholdedRelu",
        "HardSigmoid",
        "Elu",
    )
} | {
    "Affine": lambda scalars, x: apply("add", apply("mul", x, scalars["alpha"]), scalars["beta"]),
    "ScaledTanh": lambda scalars, x: apply("mul", apply("tanh", apply("mul", x, scalars["beta"])), scalars["alpha"]),
}
"""Expressions of the scalars by name and of x."""


def _activations(node: Node, defaults: tuple[str, ...]) -> list[Function]:
    """Activations of the cell, equal in both directions.

    Inputs of gates are clipped if requested, but not a cell's new state, as in ONNX Runtime.
    """
    count = len(defaults) * directions_of(node)
    names = tuple(node["activations"] or defaults * 2)[:count]  # an RNN has two by default, for any direction
    if len(names) != count or not set(names) <= _ACTIVATIONS.keys():
        raise ValueError(f"the activations must be {len(defaults)} a direction, of {', '.join(_ACTIVATIONS)}")
    lists = {name: iter(node[f"activation_{name}"] or ()) for name in ("alpha", "beta")}
    stated = [(name, _scalars(name, lists)) for name in names]
    if stated[: len(defaults)] * directions_of(node) != stated:
        raise ValueError("both directions must have the same activations")
    clips = (node["clip"], node["clip"], None)
    return [_applied(*each, clip) for each, clip in zip(stated[: len(defaults)], clips, strict=False)]


def _scalars(name: str, lists: dict[str, Iterator[float]]) -> dict[str, float]:
    """Scalars of an activation: the next stated ones, else the defaults."""
    return {scalar: next(lists[scalar], default) for scalar, default in _SCALARS.get(name, {}).items()}


def _applied(name: str, scalars: dict[str, float], clip: float | None) -> Function:
    if not clip:
        return lambda x: _ACTIVATIONS[name](scalars, x)
    return lambda x: _ACTIVATIONS[name](scalars, apply("min", apply("max", x, -clip), clip))


# --- layers ---------------------------------------------------------------------------------------------------------


def stages_of(node: Node, peepholes: bool) -> tuple[Stage, ...]:
    cell = CELLS[node.op]
    return cell.stages(node, peepholes, *_activations(node, cell.activations))


def directions_of(node: Node) -> int:
    return 2 if node["direction"] == "bidirectional" else 1


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    x, w, r = inputs[:3]
    cell, directions = CELLS[node.op], directions_of(node)
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


def order_of(node: Node, steps: int, lengths: np.ndarray) -> np.ndarray:
    """Time index per direction and step, (directions, steps, batch); a self-inverse permutation."""
    forward = np.broadcast_to(np.arange(steps)[:, None], (steps, lengths.size))
    backward = np.where(forward < lengths, lengths - 1 - forward, forward)
    return np.stack({"forward": [forward], "reverse": [backward]}.get(node["direction"], [forward, backward]))


def layer(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Compute the states after every step, zero after the end of a sequence; and the last states."""
    count = 5 + CELLS[node.op].states
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
    state_weights = r.swapaxes(1, 2)
    peepholes = [] if given(single, count) is None else np.split(single[count][:, None], PEEPHOLES, -1)
    states = tuple(
        np.zeros((directions, batch, hidden), x.dtype)
        if state is None
        else state.swapaxes(0, 1)
        if node["layout"]
        else state
        for state in (given(single, at) for at in range(5, count))
    )
    ends = np.full(batch, steps) if lengths is None else lengths
    order = order_of(node, steps, ends)
    read = x[order, np.arange(batch)].reshape(directions, steps * batch, size)
    fed = (read @ w.swapaxes(1, 2) + given_bias).reshape(directions, steps, batch, rows)

    def multiplied(vector: np.ndarray, part: slice) -> np.ndarray:
        return vector @ state_weights[..., part] + state_bias[..., part]

    return stepped(node, fed, multiplied, states, peepholes, lengths)


def stepped(
    node: Node,
    fed: np.ndarray,
    multiplied: Callable[[np.ndarray, slice], np.ndarray],
    states: tuple[np.ndarray, ...],
    peepholes: list[np.ndarray],
    lengths: np.ndarray | None,
) -> tuple[np.ndarray, ...]:
    """Run the steps of a layer in each direction's order.

    `fed` has the gate sums of the inputs (directions, steps, batch, rows); `multiplied` multiplies states by the
    weights of some rows. `states` are the initial ones.
    """
    directions, steps, batch, _ = fed.shape
    hidden, stages = states[0].shape[-1], stages_of(node, bool(peepholes))
    ends = np.full(batch, steps) if lengths is None else lengths
    y = np.zeros((*fed.shape[:3], hidden), fed.dtype)
    for at in range(steps):
        new, vector = states, states[0]
        for stage in stages:
            part = slice(stage.first * hidden, (stage.first + stage.gates) * hidden)
            product = multiplied(vector, part)
            sums = [piece for whole in (fed[:, at, ..., part], product) for piece in np.split(whole, stage.gates, -1)]
            operands = [*sums, states[0], new[-1], *peepholes]
            new = tuple(output.evaluate(operands) for output in stage.outputs)
            vector = new[0]
        if lengths is None:
            states, y[:, at] = new, new[0]
        else:
            going = (at < ends)[:, None]
            states = tuple(np.where(going, after, before) for after, before in zip(new, states, strict=True))
            y[:, at] = np.where(going, new[0], 0)
    y = y[np.arange(directions)[:, None, None], order_of(node, steps, ends), np.arange(batch)]
    if node.attributes.get("layout"):
        return y.transpose(2, 1, 0, 3), *(state.swapaxes(0, 1) for state in states)
    return y.transpose(1, 0, 2, 3), *states


# --- kernels --------------------------------------------------------------------------------------------------------


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offers in float32 with constant weights; inputs may round to bfloat16, and so may state weights and states."""
    (x, _, r), lengths, lanes = inputs[:3], given(inputs, 4), target.isa.lanes
    cell = CELLS[node.op]
    known = [
        value for at, value in enumerate(inputs) if value is not None and (at in (1, 2, 3) or at > 4 + cell.states)
    ]
    floats = [value for at, value in enumerate(inputs) if value is not None and at != 4]
    if any(value.array is None for value in known) or any(value.dtype != FLOAT32 for value in floats):
        return []
    if 0 in x.shape + r.shape:
        return []
    (directions, _, hidden), (length, batch) = r.shape, x.shape[1::-1] if node["layout"] else x.shape[:2]
    whole = lengths is None or (lengths.array is not None and bool((lengths.array == length).all()))
    problem = rows_problem(x.shape, directions * cell.gates * divide(hidden, lanes) * lanes)
    stages = stages_of(node, len(inputs) > 5 + cell.states)
    states = States(target, directions, hidden, batch, stages, not whole)
    product, step = states.fastest() if target.precision == PRECISION_BF16 else (None, states.seconds(None))
    lie = [DENSE if value is not None else "" for value in inputs[5 : 5 + cell.states]]
    forms = ("", "", "", "" if whole else DENSE, *lie, "")[: len(inputs) - 1]
    made = []
    for products in (in_own_layouts(each, target) for each in of_rows(problem, target, (F32,))):
        first = NARROW.get(products.problem.types.x, {}).get(DENSE, DENSE)
        detail = StateProducts(**vars(products), state=product.name if product else "")
        made.append(Offer((first, *forms), (DENSE,) * (1 + cell.states), products.seconds + step * length, detail))
    return made


def _lower(call: Call) -> list[Step]:
    """Multiply all inputs, into workspace; then run all steps in one call."""
    node, lanes, cell = call.node, call.target.isa.lanes, CELLS[call.node.op]
    x, w, r, bias = (call.given(at) for at in range(4))
    assert x is not None and w is not None and w.array is not None and r is not None and r.array is not None
    directions, rows, hidden = r.shape
    stages, batch_first = stages_of(node, call.given(5 + cell.states) is not None), bool(node["layout"])
    both = np.zeros((directions, 2 * rows), np.float32) if bias is None or bias.array is None else bias.array
    given_bias, state_bias = np.split(both, 2, -1)

    columns = directions * cell.gates * divide(hidden, lanes) * lanes
    fed = workspace(call.space, (*x.shape[:2], columns))
    weight = packed(w.array, cell.gates, lanes).transpose(0, 1, 3, 4, 2).reshape(columns, -1, 1, 1)
    product = steps(
        call, Operands(rows_operand(x), rows_operand(fed)), weight, packed(given_bias, cell.gates, lanes), node.op
    )

    state = call.offer.detail.state
    kind, pack_weights = (BF16, packed_bf16) if state else (F32, packed)

    def pack(stage: Stage, array: np.ndarray, pack: Callable[..., np.ndarray] = packed) -> np.ndarray:
        return pack(array, cell.gates, lanes, stage.first, stage.gates)

    weights = [
        call.constants.packed(
            node.inputs[2],
            ("state", node.op, lanes, *stage[:2], *[kind.name] * (kind != F32)),
            partial(pack, stage, r.array, pack_weights),
        )
        for stage in stages
    ]
    biases = [call.constants.keep(pack(stage, state_bias)) for stage in stages]
    rows_fed = Rows(fed.ref, fed.strides[batch_first], columns // directions * F32.bytes, fed.strides[not batch_first])
    length, batch = x.shape[1::-1] if batch_first else x.shape[:2]
    return [*product, *recurrence(call, (length, batch, directions, hidden), rows_fed, weights, biases, state)]


def recurrence(call: Call, size: Size, fed: Rows, weights: list[Ref], bias: list[Ref], product: str = "") -> list[Step]:
    """Make the call for all steps of a layer; arguments are as in `Layer`.

    Lengths, states and peepholes are those of the call, at the positions of LSTM's.
    """
    node, cell = call.node, CELLS[call.node.op]
    written = iter(call.outputs)
    names = (*node.outputs, *[""] * (1 + cell.states))[: 1 + cell.states]
    y, *last = (next(written) if name else None for name in names)
    peepholes = call.given(5 + cell.states)
    tensors = Tensors(
        call.given(4) if call.given(4) and call.offer.inputs[4] else None,
        None if peepholes is None else peepholes.array,
        tuple(call.given(5 + at) for at in range(cell.states)),
        y,
        tuple(last),
        bool(node.attributes.get("layout")),
    )
    stages, backward = stages_of(node, peepholes is not None), node["direction"] == "reverse"
    work = Recurrence(size, stages, backward, fed, weights, bias, product)
    return recurrence_steps(call.target, call.space, call.constants, work, tensors)


COMMON = {
    "activation_alpha": None,
    "activation_beta": None,
    "activations": None,
    "clip": None,
    "direction": "forward",
    "hidden_size": None,
    "layout": 0,
}
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "LSTM": {"input_forget": 0}, "GRU": {"linear_before_reset": 0}, "RNN": {"activations": ["Tanh", "Tanh"]}
}  # fmt: skip
_WEIGHTS = "x: float32 (S B I), w: float32, r: float32, bias?: float32, lengths?: int32"
_STATES = {
    "LSTM": ("h?: float32, c?: float32, peepholes?: float32", "y: float32, last_h: float32, last_c: float32"),
    **dict.fromkeys(("GRU", "RNN"), ("h?: float32", "y: float32, last_h: float32")),
}
"""Operands and results after the common ones; the rule infers their shapes."""
OPS = tuple(
    Op(
        name,
        _infer,
        layer,
        {**COMMON, **own},
        mixed=True,
        widened=False,
        offers=_offers,
        lower=_lower,
        signature=f"{_WEIGHTS}, {_STATES[name][0]} -> {_STATES[name][1]}",
        product=True,
    )
    for name, own in _ATTRIBUTES.items()
)
