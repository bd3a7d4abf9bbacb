"""What a row of the operators' table is, and the rules of shapes that several families share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.conv.choice.target import Target
from cpuconv.errors import ArgumentError, SourceError, must
from cpuconv.following.sizes import SIZES
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Lower, Offer
from cpuconv.graph.stopping import Stop
from cpuconv.kernels.binding.place import Place
from cpuconv.kernels.binding.signature import mismatch
from cpuconv.problem.integers import broadcast_shapes

Inputs = Sequence[Any]  # of a Value each; None: an optional input that is left out
Arrays = Sequence[Any]  # of an array each, or None
Infer = Callable[[Node, Inputs], list[Value]]
Reference = Callable[[Node, Arrays], np.ndarray | tuple[np.ndarray, ...]]

Offers = Callable[[Node, Inputs, Target], list[Offer]]
Restored = Callable[[Node, Inputs, Target, Mapping[str, Any], bool], Offer | None]
View = Callable[[Node, Sequence[Any], Sequence[Value]], list[Place]]  # of the inputs' places and the outputs
Parts = Callable[[Node, Sequence[Value], Place], list[Place]]  # of the inputs and the output's place

_MOST_INTEGERS = 1 << 16
MISFITS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError)  # of wrong operands
REQUIRED = object()  # in the place of a default: the attribute must be given
FLOATS = "x: float32 (S...) -> y: float32 (S...)"  # the signature of functions of float32 that keep the shape
EXACT: dict[str, Any] = {"mixed": True, "widened": False}  # rows of what keeps elements as they are, beside indices


@dataclass(frozen=True)
class Op:
    """One operator, of ONNX or of our own.

    Attributes
    ----------
    name : str
        ONNX's name.
    rule : Infer
        Shapes and dtypes of the outputs from those of the inputs, which are concrete. An output whose elements follow
        from shapes alone comes with them.
    reference : Reference
        The meaning in NumPy: gets floats as float64 and may return them so; other types are exact.
    attributes : Mapping[str, object]
        Every attribute with its default.
    parameters : tuple[int, ...]
        Positions of the inputs whose elements, not only their shape, the rule reads.
    mixed : bool
        Whether the other inputs may be of different dtypes.
    offers : Offers or None
        The ways to compute a node by kernels; None, or no offer for the operands at hand: the reference computes it
        while the network runs.
    restored : Restored or None
        For offers with a detail that records itself: the offer of such a record, found without comparing any; the last
        argument says whether its algorithm is taken over too. None if the record does not fit.
    lower : Lower or None
        The kernel calls of a node for one of the offers.
    view : View or None
        For offers that are views: where the outputs lie in the memory of the first input.
    parts : Parts or None
        For operators that lay inputs side by side: where each input lies in the memory of the output, so that producers
        can write there. `lower` then copies the inputs that lie elsewhere.
    widened : bool
        Whether the reference gets floats as float64; else it gets them as they are, as what only moves elements does.
    signature : str
        What its kernels take and give, as `cpuconv.kernels.binding.signature` reads it: nothing else is given to them.
    own : bool
        Whether it is none of ONNX's: one that rewrites or layouts make, which is refused other operands.
    in_place : bool
        Whether the output may take the memory of an input that lies as it does and that nobody reads afterwards.
    """

    name: str
    rule: Infer
    reference: Reference
    attributes: Mapping[str, object] = field(default_factory=dict)
    parameters: tuple[int, ...] = ()
    mixed: bool = False
    widened: bool = True
    offers: Offers | None = None
    restored: Restored | None = None
    lower: Lower | None = None
    view: View | None = None
    parts: Parts | None = None
    signature: str = ""
    own: bool = False
    in_place: bool = False

    def node(self, inputs: Sequence[str], outputs: Sequence[str], origin: str = "", **attributes: object) -> Node:
        """The operator applied, attributes that are not given at their defaults.

        Raises
        ------
        ArgumentError
            An attribute that the operator does not have, or one without a default left out.
        """
        unknown = attributes.keys() - self.attributes.keys()
        missing = {name for name, default in self.attributes.items() if default is REQUIRED} - attributes.keys()
        if unknown or missing:
            names = ", ".join(self.attributes) or "none"
            raise ArgumentError(must("attributes", f"those of {self.name} ({names})", ", ".join(attributes) or "none"))
        return Node(self.name, tuple(inputs), tuple(outputs), {**self.attributes, **attributes}, origin)

    def infer(self, node: Node, inputs: Inputs) -> list[Value]:
        """Shapes and dtypes of the outputs; sizes that depend on elements that are not known are open.

        Raises
        ------
        SourceError
            The inputs do not fit.
        """
        stated = [given(inputs, position) for position in self.parameters]
        if any(value is not None and value.array is None for value in stated):
            return [Value()] * len(node.outputs)
        with _fitting(node, inputs):
            operands = [value for at, value in enumerate(inputs) if value is not None and at not in self.parameters]
            if not self.mixed and len({value.dtype for value in operands}) > 1:
                raise ValueError("they must be of one type")
            values = self.rule(node, inputs)
            if len(values) < len(node.outputs):
                raise ValueError(f"there are {len(node.outputs)} outputs where the operator has {len(values)}")
            results = [value if name else None for name, value in zip(node.outputs, values, strict=False)]
        if self.own:
            self.check(node, inputs, results)
        return values

    def check(self, node: Node, inputs: Inputs, outputs: Inputs) -> None:
        """See that operands and results are those that the kernels take and give.

        Raises
        ------
        SourceError
            One is not; the message names it.
        """
        reason = mismatch(self.signature, inputs, outputs)
        if reason is not None:
            raise SourceError(f"{node.label}: {reason}")

    def evaluate(
        self,
        node: Node,
        arrays: Arrays,
        dtypes: Sequence[np.dtype | None],
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """The outputs by the reference, floats computed in float64 and rounded to `dtypes` at the end.

        `stop` is not asked: a reference is a few calls of NumPy.
        """
        given = [
            array.astype(np.float64) if self.widened and array is not None and is_float(array.dtype) else array
            for array in arrays
        ]
        values = [None if array is None else Value(array.shape, array.dtype) for array in arrays]
        with np.errstate(all="ignore"), _fitting(node, values):
            results = self.reference(node, given)
            results = results if isinstance(results, tuple) else (results,)
            return [np.asarray(result, dtype) for result, dtype in zip(results, dtypes, strict=False)]


@contextmanager
def _fitting(node: Node, inputs: Inputs) -> Iterator[None]:
    """Turn what NumPy says of operands that do not fit into an error that names the node."""
    try:
        yield
    except MISFITS as error:
        raise misfit(node, inputs, error) from error


def misfit(node: Node, inputs: Inputs, error: Exception) -> SourceError:
    """An error that says which node cannot take what it is given, and why."""
    stated = ", ".join("-" if value is None else str(value) for value in inputs)
    return SourceError(f"{node.label} cannot take inputs {stated}: {error}")


def is_float(dtype: np.dtype) -> bool:
    """Whether a type is one of the floating-point types that networks compute with."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def least(dtype: np.dtype) -> float | int | bool:
    """The smallest number of a type: what the largest of nothing is."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else False if dtype.kind == "b" else -np.inf


def most(dtype: np.dtype) -> float | int | bool:
    """The largest number of a type: what the smallest of nothing is."""
    return np.iinfo(dtype).max if dtype.kind in "iu" else True if dtype.kind == "b" else np.inf


def near(number: float | None, value: float) -> bool:
    """Whether a number that a model states is meant to be `value`: 0.16667 is a sixth, 0.7071 the root of a half."""
    return number is not None and math.isclose(number, value, rel_tol=3e-5)


def given(items: Sequence[Any], position: int) -> Any:
    """An input by position, None where it is left out."""
    return items[position] if position < len(items) else None


def known(items: Sequence[Any], position: int) -> Any:
    """The elements of an input by position, where it is given and they are known."""
    item = given(items, position)
    return item and item.array


def integers(array: np.ndarray) -> list[int]:
    """The elements of a constant of integers, which says something of axes or parts."""
    if array.size > _MOST_INTEGERS:
        raise ValueError(f"{array.size} sizes, axes or places")
    return array.ravel().tolist() if array.dtype == SIZES else [int(item) for item in array.ravel()]


def axis_in(axis: int, rank: int) -> int:
    """A possibly negative axis as one of ``range(rank)``."""
    if not -rank <= axis < rank:
        raise ValueError(f"there is no axis {axis} among {rank}")
    return axis % rank


# --- rules ----------------------------------------------------------------------------------------------------------


def like_first(node: Node, inputs: Inputs) -> list[Value]:
    """One output of the shape and dtype of the first input."""
    return [Value(inputs[0].shape, inputs[0].dtype)]


def broadcast(node: Node, inputs: Inputs) -> list[Value]:
    """One output of the shape that all inputs broadcast to, of the first one's dtype."""
    present = [value for value in inputs if value is not None]
    return [Value(broadcast_shapes(*(value.shape for value in present)), present[0].dtype)]


def as_reference(reference: Reference) -> Infer:
    """The rule that a reference itself is: run on arrays of the inputs' shapes that take no memory.

    For references that only make views.
    """

    def infer(node: Node, inputs: Inputs) -> list[Value]:
        arrays = [
            value if value is None else np.broadcast_to(np.zeros((), value.dtype), value.shape) for value in inputs
        ]
        arrays = [
            array if value is None or value.array is None else value.array
            for array, value in zip(arrays, inputs, strict=True)
        ]
        results = reference(node, arrays)
        results = results if isinstance(results, tuple) else (results,)
        return [Value(result.shape, result.dtype) for result in results]

    return infer
