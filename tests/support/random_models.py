"""Random models: an operator of the table with what may stand before and behind it, of any types, sizes and numbers.

A number is a model: an operator with the operands and attributes that its tests draw, which are then spoilt now and
then: a size of 0, another type, infinities, an attribute out of range. A model is right, by the references and by
ONNX's evaluator, or is refused by an error of ours; nothing around its arrays is read or written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import cpuconv
from cpuconv.errors import CpuconvError
from cpuconv.graph.ops import TABLE
from support import emulated, guarded
from support.graph.cases import CASES, drawn
from support.graphs import MISJUDGED, NEWEST, Case, run

OPERATORS = tuple(sorted(op for op in CASES if onnx.defs.has(op)))
TYPES = (np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint8, np.int32, np.int64, bool)
ODD = (-1, 0, 1, 2, 7, 1 << 31, 1 << 62)  # attributes
ODD_NUMBERS = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1e4)
MAX_BEHIND = 3  # nodes
MAX_ELEMENTS = 1 << 16  # behind which nothing else stands
LIMITS = {"float32": 2e-4, "float64": 2e-4, "float16": 1e-2, "bfloat16": 6e-2}  # of the largest number
NARROW_LIMITS = {"float16": 1e-2, "bfloat16": 6e-2}  # of networks in these precisions
UNARY = ("Relu", "Sigmoid", "HardSwish", "Tanh", "Abs", "Neg", "LeakyRelu", "Softplus", "Floor", "Exp", "Erf")
BINARY = ("Add", "Mul", "Max", "Min", "Sub", "Div", "PRelu", "Sum", "Mean")
# Operators of infinite numbers: ONNX does not say which integers they give.
UNSAID = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
# Operators whose results jump: a difference of rounding may become one of any size.
STEPS = frozenset({"Floor", "Ceil", "Round", "Sign", "ArgMax", "ArgMin", "TopK", "NonZero", "Equal", "Less", "Greater"})
# Operators of which the evaluator computes something else than ONNX says, of spoilt operands.
MISTAKEN = {
    **MISJUDGED,
    "AffineGrid": "float32 grids of theta of another type",
    "DynamicQuantizeLinear": "numbers beyond the type",
    "GridSample": "a cubic at the border",
    "QuantizeLinear": "numbers beyond the type",
    "OneHot": "infinite values",
}


class Drawn(NamedTuple):
    """A model, what it is fed, and how it was made."""

    model: onnx.ModelProto
    feed: dict[str, np.ndarray]
    op: str
    spoilt: str
    steps: float  # a difference that rounding to integers may make


class Wrong(AssertionError):
    """A model that gives other numbers, or ends in an error that is not ours."""


# --- drawing ----------------------------------------------------------------------------------------------------------


def _case(op: str, number: int) -> Case:
    """A case of an operator; the first that Hypothesis draws are the simplest, so that it is the last of a few."""
    return drawn(CASES[op], 3, number)[-1]


def _emptied(rng: np.random.Generator, case: Case) -> Case:
    """The case with a size that is 0, in one operand or wherever it is one."""
    places = [(at, axis) for at, array in enumerate(case.arrays) if array is not None for axis in range(array.ndim)]
    if not places:
        return case
    at, axis = places[rng.integers(len(places))]
    size, everywhere = case.arrays[at].shape[axis], rng.random() < 0.7

    def cut(other: int, array: np.ndarray | None) -> np.ndarray | None:
        if array is None or (other != at and not everywhere):
            return array
        gone = [own == size if everywhere else place == axis for place, own in enumerate(array.shape)]
        return array[tuple(slice(0, 0) if each else slice(None) for each in gone)]

    return case._replace(arrays=[cut(*each) for each in enumerate(case.arrays)])


def _retyped(rng: np.random.Generator, case: Case) -> Case:
    """The case with operands of another type: of all float32, or of one operand."""
    dtype, present = (
        np.dtype(TYPES[rng.integers(len(TYPES))]),
        [at for at, x in enumerate(case.arrays) if x is not None],
    )
    alone = present[rng.integers(len(present))] if rng.random() < 0.3 else None
    with np.errstate(all="ignore"):
        arrays = [
            x if x is None or (x.dtype != np.float32 if alone is None else at != alone) else x.astype(dtype)
            for at, x in enumerate(case.arrays)
        ]
    return case._replace(arrays=arrays)


def _numbered(rng: np.random.Generator, case: Case) -> Case:
    """The case with a number of float32 that is infinite, no number, subnormal or large."""
    arrays = [None if x is None else x.copy() for x in case.arrays]
    floats = [x for x in arrays if x is not None and x.dtype == np.float32 and x.size]
    for x in floats[:1]:
        x.flat[rng.integers(x.size)] = ODD_NUMBERS[rng.integers(len(ODD_NUMBERS))]
    return case._replace(arrays=arrays)


def _attributed(rng: np.random.Generator, case: Case) -> Case:
    """The case with an integer of an attribute that may be out of range."""
    named = [name for name, value in case.attributes.items() if _integers(value)]
    if not named:
        return case
    name, odd = named[rng.integers(len(named))], ODD[rng.integers(len(ODD))]
    value: Any = case.attributes[name]
    if isinstance(value, (list, tuple)):
        value = [*value]
        value[rng.integers(len(value))] = odd
    return case._replace(attributes={**case.attributes, name: value if isinstance(value, list) else odd})


def _integers(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, (list, tuple)) and any(isinstance(each, int) for each in value))


SPOILERS: dict[str, tuple[float, Callable[[np.random.Generator, Case], Case]]] = {
    "a size of 0": (0.15, _emptied),
    "another type": (0.15, _retyped),
    "an odd number": (0.1, _numbered),
    "an odd attribute": (0.1, _attributed),
}


class _Maker:
    """A model under construction around a case."""

    def __init__(self, rng: np.random.Generator, op: str, case: Case) -> None:
        self.rng, self.case = rng, case
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.feed: dict[str, np.ndarray] = {}
        self.steps = 0.0
        self.jumps = op in STEPS
        fixed = {*TABLE[op].parameters} | {at for at in range(len(case.arrays)) if at and rng.random() < 0.6}
        names = [self.operand(at, array, at in fixed) for at, array in enumerate(case.arrays)]
        self.outputs = [f"y{at}" for at in range(case.outputs)]
        self.nodes.append(helper.make_node(op, names, self.outputs, **case.attributes))

    def operand(self, at: int, array: np.ndarray | None, fixed: bool) -> str:
        if array is None:
            return ""
        name = self.constant(np.asarray(array), f"x{at}") if fixed else self.fed(np.asarray(array), f"x{at}")
        if array.dtype == np.float32 and array.ndim and self.rng.random() < 0.25:
            return self.quantised(name) if self.rng.random() < 0.6 else self.node("Neg", self.node("Neg", name))
        return name

    def constant(self, array: np.ndarray, name: str = "") -> str:
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def fed(self, array: np.ndarray, name: str = "") -> str:
        name = name or f"f{len(self.feed)}"
        self.feed[name] = np.asarray(array)
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def quantised(self, name: str, scale: float = 1 / 32) -> str:
        zero = np.array(0, np.int8) if self.rng.random() < 0.5 else np.array(128, np.uint8)
        pair = self.constant(np.array(scale, np.float32)), self.constant(zero)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", name, *pair), *pair)

    def behind(self) -> None:
        """Nodes behind the first output, as long as it is of float32 and small."""
        name = self.outputs[0]
        for _ in range(self.rng.integers(0, MAX_BEHIND + 1)):
            value = self.value(name)
            if value is None or value.dtype != np.float32 or not value.ndim or value.size > MAX_ELEMENTS:
                break
            name = self.one_behind(name, value)
        self.outputs[0] = name

    def value(self, name: str) -> np.ndarray | None:
        """A value as the references compute it; None where they refuse."""
        try:
            return run(self.model([name]), self.feed)[0]
        except CpuconvError:
            return None

    def one_behind(self, name: str, value: np.ndarray) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.3:
            op = UNARY[rng.integers(len(UNARY))]
            self.jumps |= op in STEPS
            return self.node(op, name)
        if kind < 0.65:
            return self.two(name, value)
        if kind < 0.75:
            ends = [self.second((), 0.0) if rng.random() < 0.7 else "" for _ in range(2)]
            return self.node("Clip", name, *ends)
        if kind < 0.85:
            order = rng.permutation(value.ndim).tolist()
            return self.node("Transpose", name, perm=order)
        if kind < 0.9:
            return self.node("Reshape", name, self.constant(np.array([-1 if value.size else 0])))
        if kind < 0.95:
            return self.node("Concat", name, name, axis=int(rng.integers(value.ndim)))
        finite = np.abs(value[np.isfinite(value)]).max(initial=0.0)
        scale = max(float(finite) / 100, 1e-6)
        self.steps += 1.01 * scale
        return self.quantised(name, scale)

    def two(self, name: str, value: np.ndarray) -> str:
        rng, op = self.rng, BINARY[self.rng.integers(len(BINARY))]
        shapes = [
            (),
            (1,),
            value.shape,
            value.shape[-1:],
            (value.shape[1], *[1] * (value.ndim - 2)) if value.ndim > 1 else (),
        ]
        other = (
            name if rng.random() < 0.1 else self.second(shapes[rng.integers(len(shapes))], 0.5 if op == "Div" else -1.0)
        )
        turned = rng.random() < 0.4 and op not in ("Div", "PRelu")
        return self.node(op, *((other, name) if turned else (name, other)))

    def second(self, shape: tuple[int, ...], least: float) -> str:
        array = self.rng.uniform(least, 2, shape).astype(np.float32)
        kind = self.rng.random()
        if kind < 0.5:
            return self.constant(array)
        return self.fed(array) if kind < 0.8 else self.node("Abs", self.fed(array))

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.feed.items()
        ]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "random", infos, results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", NEWEST)], ir_version=10)


def draw(number: int, of: tuple[str, ...] = OPERATORS) -> Drawn:
    """The model of a number, of one of these operators."""
    rng = np.random.default_rng(number)
    op = of[number % len(of)]
    case, spoilt = _case(op, number), []
    for name, (chance, spoil) in SPOILERS.items():
        if rng.random() < chance:
            case = spoil(rng, case)
            spoilt.append(name)
    maker = _Maker(rng, op, case)
    maker.behind()
    return Drawn(maker.model(maker.outputs), maker.feed, op, ", ".join(spoilt), np.inf if maker.jumps else maker.steps)


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(drawn: Drawn, number: int, precision: str = "float32") -> str:
    """Whether a model is "right" or "refused", or "compiled" where this machine cannot run it.

    Raises
    ------
    Wrong
        It is neither.
    """
    edge = guarded.EDGES[number % 2]
    feed = {name: guarded.place(np.asarray(array, order="C"), edge) for name, array in drawn.feed.items()}
    before = {name: guarded.pages(array).tobytes() for name, array in feed.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options: Any = {"threads": 1 + number % 2, "precision": precision}
            got = list(cpuconv.compile(drawn.model.SerializeToString(), **options).run(feed).values())
    except CpuconvError as error:
        return _refused(drawn, error)
    except Exception as error:
        raise Wrong(f"it ends in {type(error).__name__}: {error}") from error
    if emulated.only_compiles():
        return "compiled"
    for name, bytes_ in before.items():
        if guarded.pages(feed[name]).tobytes() != bytes_:
            raise Wrong(f"{name} was written to, or what lies around it")
    if "number" in drawn.spoilt and any(node.op_type in UNSAID for node in drawn.model.graph.node):
        return "right"
    with np.errstate(all="ignore"):
        _compare(drawn, got, run(drawn.model, drawn.feed), "the references", precision)
        right = _evaluated(drawn)
        if right is not None:
            _compare(drawn, got, right, "ONNX's evaluator", precision)
    return "right"


def _refused(drawn: Drawn, error: CpuconvError) -> str:
    if not drawn.spoilt:
        raise Wrong(f"it is refused: {error}")
    return "refused"


def _evaluated(drawn: Drawn) -> list[np.ndarray] | None:
    """What ONNX's evaluator gives, if it can and may be believed."""
    if drawn.op in MISTAKEN or drawn.op == "Resize":
        return None
    if "number" in drawn.spoilt and any(map(_is_dilated, drawn.model.graph.node)):
        return None  # it multiplies infinite numbers by zeros that it puts between the taps
    try:
        onnx.shape_inference.infer_shapes(drawn.model, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError:  # of types that ONNX does not allow
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ReferenceEvaluator(drawn.model).run(None, drawn.feed)
    except Exception:  # whatever the evaluator of any operator raises
        return None


def _is_dilated(node: onnx.NodeProto) -> bool:
    return any(each.name == "dilations" and max(each.ints, default=1) > 1 for each in node.attribute)


def _compare(drawn: Drawn, got: list[np.ndarray], right: list[np.ndarray], whose: str, precision: str) -> None:
    for at, (own, other) in enumerate(zip(got, map(np.asarray, right), strict=True)):
        if own.shape != other.shape or own.dtype != other.dtype:
            raise Wrong(f"output {at} is {own.dtype}{own.shape}, where {whose} give {other.dtype}{other.shape}")
        limit = LIMITS.get(own.dtype.name)
        if limit is not None and precision in NARROW_LIMITS:
            limit = max(limit, NARROW_LIMITS[precision])
        if drawn.steps == np.inf and limit is not None and len(drawn.model.graph.node) > 1:
            continue
        if limit is None:
            wrong = own != other
        else:
            a, b = own.astype(np.float64), other.astype(np.float64)
            finite = np.isfinite(a) & np.isfinite(b)
            bound = limit * max(1.0, float(np.abs(b[finite]).max(initial=0.0))) + drawn.steps
            wrong = np.where(finite, np.abs(a - b) > bound, ~((a == b) | (np.isnan(a) & np.isnan(b))))
        if wrong.any():
            place = tuple(int(each[0]) for each in np.nonzero(np.atleast_1d(wrong)))[: wrong.ndim]
            raise Wrong(f"output {at} at {place} is {own[place]!r}, where {whose} give {other[place]!r}")
