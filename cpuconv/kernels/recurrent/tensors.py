"""Recurrent layers on the tensors of ONNX's LSTM, with time or sequences as the first axis."""

from __future__ import annotations

import math

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.kernels.binding.constants import Constants
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Ref, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.recurrent.recurrent import Layer, Rows, layer_steps, packed
from cpuconv.kernels.recurrent.recurrent_cell import PEEPHOLES, Stage

Size = tuple[int, int, int, int]  # time steps, sequences, directions, hidden units


@dataclass(frozen=True)
class Recurrence:
    """A layer without its tensors; its fields are those of `Layer`."""

    size: Size
    stages: tuple[Stage, ...]
    backward: bool
    fed: Rows
    weights: list[Ref]
    bias: list[Ref]
    product: str = ""


@dataclass(frozen=True)
class Tensors:
    """The tensors of a layer; each but `batch_first` is None if it is left out.

    Attributes
    ----------
    lengths : TensorView
        (sequences,)
    peepholes : numpy.ndarray
        (directions, 3 hidden)
    states, last : tuple[TensorView, ...]
        States before and after all time steps: (directions, sequences, hidden).
    y : TensorView
        (steps, directions, sequences, hidden)
    batch_first : bool
        Whether sequences are the first axis of the tensors.
    """

    lengths: TensorView | None
    peepholes: np.ndarray | None
    states: tuple[TensorView | None, ...]
    y: TensorView | None
    last: tuple[TensorView | None, ...]
    batch_first: bool

    def rows(self, place: TensorView) -> Rows:
        """Rows of a tensor of states."""
        first, second, _ = place.strides
        return Rows(place.ref, 0, *((second, first) if self.batch_first else (first, second)))


def recurrence_steps(
    processor: Processor, space: Space, constants: Constants, work: Recurrence, tensors: Tensors
) -> list[Step]:
    """Make all steps of a layer; missing initial states are zeros, and unused outputs are in workspace."""
    (steps, batch, directions, hidden), lengths = work.size, tensors.lengths
    outer, inner = (batch, (steps, directions)) if tensors.batch_first else (steps, (directions, batch))
    y, last = tensors.y or workspace(space, (outer, *inner, hidden)), list(tensors.last)
    if len(last) > 1 and last[1] is None:  # steps store the cell state there
        shape = (batch, directions) if tensors.batch_first else (directions, batch)
        last[1] = workspace(space, (*shape, hidden))

    def first(place: TensorView | None) -> Rows:
        return Rows(constants.keep(np.zeros(hidden, np.float32)), 0, 0, 0) if place is None else tensors.rows(place)

    t, d, b = (y.strides[1], y.strides[2], y.strides[0]) if tensors.batch_first else y.strides[:3]
    seen = None if tensors.peepholes is None else packed(tensors.peepholes, PEEPHOLES, processor.isa.lanes)
    layer = Layer(
        work.stages,
        steps,
        directions,
        batch,
        hidden,
        work.backward,
        work.weights,
        work.bias,
        None if seen is None else constants.keep(seen),
        None if lengths is None else Rows(lengths.ref, 0, 0, *lengths.strides),
        work.fed,
        tuple(map(first, tensors.states)),
        Rows(y.ref, t, d, b),
        tuple(Rows(0, 0, 0, 0) if place is None else tensors.rows(place) for place in last),
        work.product,
    )
    return layer_steps(processor, space, layer)


def workspace(space: Space, shape: tuple[int, ...]) -> TensorView:
    """Allocate a float32 tensor in workspace."""
    return TensorView.plain(space.reserve(math.prod(shape) * F32.bytes), shape)
