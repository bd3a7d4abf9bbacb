"""Row of the operator table, and shape inference rules that several families share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.conv.choice.target import Target
from cpuconv.errors import ArgumentError, SourceError, must
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Lower, Offer
from cpuconv.graph.ops.traits import Int8, Movement, Sign
from cpuconv.graph.stopping import Stop
from cpuconv.kernels.binding.signature import mismatch
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.problem.integers import broadcast_shapes
from cpuconv.symbolic.sizes import SIZES

Inputs = Sequence[Any]  # a Value per input; None for an absent optional input
Arrays = Sequence[Any]  # an array per input, or None
Infer = Callable[[Node, Inputs], list[Value]]
Reference = Callable[[Node, Arrays], np.ndarray | tuple[np.ndarray, ...]]

Offers = Callable[[Node, Inputs, Target], list[Offer]]
Restored = Callable[[Node, Inputs, Target, Mapping[str, Any], bool], Offer | None]
View = Callable[[Node, Sequence[Any], Sequence[Value]], list[TensorView]]  # of the inputs' places and the output values
Parts = Callable[[Node, Inputs, TensorView], list[TensorView]]  # of the input values and the output's place

_MAX_INTEGERS = 1 << 16
OPERAND_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError)  # invalid operands
REQUIRED = object()  # default of attributes without a default value
FLOATS = "x: float32 (S...) -> y: float32 (S...)"  # signature of float32 functions that keep the shape
EXACT: dict[str, Any] = {"mixed": True, "widened": False}  # rows that keep elements unchanged, with indices


@dataclass(frozen=True)
class Op:
    """Row of the operator table, for an operator of ONNX or of this project.

    Attributes
    ----------
    name : str
        Name of the operator; ONNX's if it has it.
    rule : Infer
        Infers shapes and dtypes of the outputs from concrete inputs. Outputs whose elements follow from shapes alone
        include them.
    reference : Reference
        Definition in NumPy: gets floating-point inputs as float64 and may return float64; other types are exact.
    attributes : Mapping[str, object]
        All attributes with their defaults.
    parameters : tuple[int, ...]
        Positions of the inputs whose elements, not only shapes, `rule` reads.
    mixed : bool
        Whether the other inputs may have different dtypes.
    offers : Offers or None
        Candidates for computing a node by kernels. If it is None or returns none, the reference computes the node at
        run time.
    restored : Restored or None
        For offers with a recordable detail: restores the offer of a record without comparing candidates. The last
        argument says whether to use its algorithm too. Returns None if the record does not fit.
    lower : Lower or None
        Kernel calls of a node for one of its offers.
    view : View or None
        For offers that are views: the places of the outputs in the memory of the first input.
    parts : Parts or None
        For concatenations and padding: the place of each input in the memory of the output, so that producers can write
        there. `lower` then copies the other inputs.
    widened : bool
        Whether the reference gets floating-point inputs as float64; data movement gets them unchanged.
    signature : str
        Operands and results of its kernels, in the syntax of `cpuconv.kernels.binding.signature`; others are rejected.
    own : bool
        Whether ONNX does not define the operator; operands that do not match `signature` raise an error.
    in_place : bool
        Whether the output may reuse the memory of an input of the same form that no later node reads.

    The following fields are traits. Rewrites, quantisation and layout planning query them instead of operators' names.
    Defaults promise nothing. Quantised versions of floating-point operators have none.

    joins : bool
        Whether all inputs are data. Otherwise the first one is, and the others are parameters such as weights or axes.
    commutative : bool
        Whether the order of the inputs does not matter.
    movement : Movement
        How the output is made of elements of the first input.
    int8 : Int8
        How the operator computes between int8 layers.
    sign : Sign
        What is known of the sign of the first output.
    product : bool
        Whether outputs are sums of floating-point products over channels: convolutions, matrix multiplications and
        recurrent layers. Rounding errors of inputs even out in them.
    window : bool
        Whether an output combines several adjacent elements of each channel: convolutions, pooling and resampling.
    rowwise : bool
        Whether each row along the last axis is computed by itself, if the attribute `axis`, if any, is the last axis.
    follows_sizes : bool
        Whether the reference computes arrays of symbolic sizes (`cpuconv.symbolic.sizes`) exactly.
    shape_only : bool
        Whether results depend on the shapes of inputs alone.
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
    joins: bool = False
    commutative: bool = False
    movement: Movement = Movement.NONE
    int8: Int8 = Int8.NEVER
    sign: Sign = Sign.UNKNOWN
    product: bool = False
    window: bool = False
    rowwise: bool = False
    follows_sizes: bool = False
    shape_only: bool = False

    @property
    def convolution(self) -> bool:
        """Whether it is a floating-point convolution."""
        return self.product and self.window

    @property
    def has_epilogue(self) -> bool:
        """Whether an activation, and a fourth operand that is added before it, can be fused."""
        return "activation" in self.attributes

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return "seed" in self.attributes

    def node(self, inputs: Sequence[str], outputs: Sequence[str], origin: str = "", **attributes: object) -> Node:
        """Make a node of the operator, with defaults for other attributes.

        Raises
        ------
        ArgumentError
            The operator does not have an attribute, or one without a default is missing.
        """
        unknown = attributes.keys() - self.attributes.keys()
        missing = {name for name, default in self.attributes.items() if default is REQUIRED} - attributes.keys()
        if unknown or missing:
            names = ", ".join(self.attributes) or "none"
            raise ArgumentError(must("attributes", f"those of {self.name} ({names})", ", ".join(attributes) or "none"))
        return Node(self.name, tuple(inputs), tuple(outputs), {**self.attributes, **attributes}, origin)

    def infer(self, node: Node, inputs: Inputs) -> list[Value]:
        """Infer shapes and dtypes of the outputs; sizes that depend on unknown elements are open.

        Raises
        ------
        SourceError
            The inputs do not fit the operator.
        """
        stated = [given(inputs, position) for position in self.parameters]
        if any(value is not None and value.array is None for value in stated):
            return [Value()] * len(node.outputs)
        with _named_errors(node, inputs):
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
        """Check that operands and results match the kernels' signature.

        Raises
        ------
        SourceError
            One does not; the message has its name.
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
        """Compute the outputs by the reference, in float64 for floating-point types, and round to `dtypes` at the end.

        `stop` is not checked: a reference is a few NumPy calls.
        """
        given = [
            array.astype(np.float64) if self.widened and array is not None and is_float(array.dtype) else array
            for array in arrays
        ]
        values = [None if array is None else Value(array.shape, array.dtype) for array in arrays]
        with np.errstate(all="ignore"), _named_errors(node, values):
            results = self.reference(node, given)
            results = results if isinstance(results, tuple) else (results,)
            return [np.asarray(result, dtype) for result, dtype in zip(results, dtypes, strict=False)]


@contextmanager
def _named_errors(node: Node, inputs: Inputs) -> Iterator[None]:
    """Convert NumPy's errors about invalid operands to errors that name the node."""
    try:
        yield
    except OPERAND_ERRORS as error:
        raise operand_error(node, inputs, error) from error


def operand_error(node: Node, inputs: Inputs, error: Exception) -> SourceError:
    """Make an error for a node with invalid operands, with the reason."""
    stated = ", ".join("-" if value is None else str(value) for value in inputs)
    return SourceError(f"{node.label} cannot take inputs {stated}: {error}")


def is_float(dtype: np.dtype) -> bool:
    """Whether a type is a supported floating-point type."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def near(number: float | None, value: float) -> bool:
    """Whether a number in a model is a rounded `value`: 0.16667 is 1/6, 0.7071 is sqrt(1/2)."""
    return number is not None and math.isclose(number, value, rel_tol=3e-5)


def given(items: Sequence[Any], position: int) -> Any:
    """Input by position; None if it is absent."""
    return items[position] if position < len(items) else None


def known(items: Sequence[Any], position: int) -> Any:
    """Elements of an input by position; None if it is absent or they are unknown."""
    item = given(items, position)
    return item and item.array


def integers(array: np.ndarray) -> list[int]:
    """Elements of an integer constant, such as axes or sizes; limited in number."""
    if array.size > _MAX_INTEGERS:
        raise ValueError(f"{array.size} sizes, axes or places")
    return array.ravel().tolist() if array.dtype == SIZES else [int(item) for item in array.ravel()]


def axis_in(axis: int, rank: int) -> int:
    """Normalise a possibly negative axis to ``range(rank)``."""
    if not -rank <= axis < rank:
        raise ValueError(f"there is no axis {axis} among {rank}")
    return axis % rank


# --- rules ----------------------------------------------------------------------------------------------------------


def defined(function: Callable[..., Any]) -> Reference:
    """Make the reference of an operator from its definition, which takes the attributes first."""
    return lambda node, arrays: function(node.attributes, *arrays)


def like_first(node: Node, inputs: Inputs) -> list[Value]:
    """Infer one output with the shape and dtype of the first input."""
    return [Value(inputs[0].shape, inputs[0].dtype)]


def broadcast(node: Node, inputs: Inputs) -> list[Value]:
    """Infer one output with the shape to which all inputs broadcast, and the first one's dtype."""
    present = [value for value in inputs if value is not None]
    return [Value(broadcast_shapes(*(value.shape for value in present)), present[0].dtype)]


def as_reference(reference: Reference) -> Infer:
    """Make an inference rule that runs the reference on arrays of the inputs' shapes without own memory.

    Only for references that make views.
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
