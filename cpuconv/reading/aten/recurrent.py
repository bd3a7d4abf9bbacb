"""Adapters of LSTM and GRU layers, of several layers and both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cpuconv.reading.aten.emitter import Emitter, Unsupported
from cpuconv.reading.aten.shapes import sliced


def _in_order(parameter: Any, gates: Sequence[int]) -> torch.Tensor:
    """The rows of a parameter, which are those of one gate after another, in ONNX's order of gates."""
    if parameter.known is None:
        raise Unsupported("with weights that are not constant")
    parts = parameter.known.chunk(len(gates))
    return torch.cat([parts[gate] for gate in gates])


def _recurrent(op: str, gates: Sequence[int], **attributes: Any) -> Callable[..., list[str]]:
    """Make an adapter of an operator; `gates` are PyTorch's gates in ONNX's order."""

    def apply(
        b: Emitter, x: Any, states: Any, parameters: Sequence[Any], has_biases: bool, layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> list[str]:  # fmt: skip
        states = states if isinstance(states, (list, tuple)) else [states]
        directions, each = 1 + bidirectional, 4 if has_biases else 2
        if len(parameters) != layers * directions * each or x.rank != 3 or (train and dropout):
            raise Unsupported("with projections, without a batch, or in training mode")
        y = b.add("Transpose", x, perm=[1, 0, 2]) if batch_first else x
        ends: list[list[str]] = [[] for _ in states]
        for layer in range(layers):
            first = layer * directions
            groups = [parameters[at * each : (at + 1) * each] for at in range(first, first + directions)]
            rows = [[_in_order(parameter, gates) for parameter in group] for group in groups]
            w, r = (torch.stack([row[at] for row in rows]) for at in (0, 1))
            bias = torch.stack([torch.cat(row[2:]) for row in rows]) if has_biases else None
            starts = [sliced(b, state, 0, first, first + directions) for state in states]
            y, *last = b.add(
                op, y, w, r, bias, None, *starts, count=1 + len(states), hidden_size=r.shape[-1],
                direction="bidirectional" if bidirectional else "forward", **attributes,
            )  # fmt: skip
            for found, end in zip(ends, last, strict=True):
                found.append(end)
            y = b.add("Reshape", b.add("Transpose", y, perm=[0, 2, 1, 3]), b.integers(0, 0, -1))
        y = b.add("Transpose", y, perm=[1, 0, 2]) if batch_first else y
        return [y, *(b.add("Concat", *found, axis=0) if layers > 1 else found[0] for found in ends)]

    return apply


ADAPTERS: dict[str, Callable[..., Any] | None] = {
    "lstm.input": _recurrent("LSTM", (0, 3, 1, 2)),
    "gru.input": _recurrent("GRU", (1, 0, 2), linear_before_reset=1),
}
