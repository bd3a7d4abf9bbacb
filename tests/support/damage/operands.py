"""Internal operators with operands of other types and shapes: refused, or computed as their references do.

Kernels run between guard pages, by every way that the operator offers, from a saved model that was read.

An application is plain JSON: the operator, the number of its case in `support.graph.cases`, and what is changed, each a
kind of change with two numbers. So a fuzzer can change it, and a file holds all that is needed to repeat it.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.target import Target as Machine
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import OWN, TABLE
from cpuconv.isa import current
from cpuconv.network.running.building import build
from cpuconv.network.running.packed import Packed
from cpuconv.network.saved.program import SavedProgram, Settings
from cpuconv.network.saved.reading import Saved
from cpuconv.network.saved.writing import Blocks, model_header, write
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.selection.layout import lay_out, offers_of
from cpuconv.network.sizes.prepared import Prepared, Rewriting
from support.graph import lowered
from support.graph.cases import CASES, KNOWN, TOLERANCES, drawn
from support.graphs import Case

_NAMES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)
DTYPES = (*map(np.dtype, _NAMES), *map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4)))
_MACHINE = Machine(current(), 1, "heuristic")
_NONE = Decisions.of(_MACHINE, ())
_OPTIONS = Settings(1, "heuristic", Limits(), Rewriting())
_CASES = 2  # of each operator
_LARGEST = 1 << 16  # elements of an operand

SHAPES: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda x: np.asarray(x[0]) if x.ndim and len(x) else x,
    lambda x: x[None],
    lambda x: x[..., None],
    lambda x: np.concatenate([x, x], 0) if x.ndim else x.repeat(2),
    lambda x: np.concatenate([x, x[..., :1]], -1) if x.ndim else x.repeat(3),
    lambda x: x[..., 1:] if x.ndim else x,
    lambda x: x[:1] if x.ndim else x,
    lambda x: x.reshape(-1),
    lambda x: np.ascontiguousarray(x.T),
    lambda x: x.reshape(-1)[:0],
    lambda x: np.resize(x, ()),
)
"""Other shapes: an axis less or more, sizes twice, by one more or less, one; flat, turned, empty, no axes."""


class Application(NamedTuple):
    """An operator with operands, which the node at `known` places knows before it runs."""

    op: str
    case: Case
    known: frozenset[int]


# --- changes --------------------------------------------------------------------------------------------------------


def _typed(made: Application, where: int, which: int) -> Application:
    """An operand of another type."""
    return _with(made, where, lambda x: x.astype(DTYPES[which % len(DTYPES)]))


def _shaped(made: Application, where: int, which: int) -> Application:
    """An operand of another shape."""
    return _with(made, where, SHAPES[which % len(SHAPES)])


def _with(made: Application, where: int, change: Callable[[np.ndarray], np.ndarray]) -> Application:
    arrays = list(made.case.arrays)
    at = where % len(arrays)
    array = arrays[at]
    arrays[at] = None if array is None else change(array)
    return made._replace(case=made.case._replace(arrays=arrays))


def _stated(made: Application, where: int, which: int) -> Application:
    """An attribute that is a type, or an array, changed alike."""
    attributes = dict(made.case.attributes)
    names = [name for name, value in sorted(attributes.items()) if isinstance(value, (np.dtype, np.ndarray))]
    if names:
        name = names[where % len(names)]
        is_type = isinstance(attributes[name], np.dtype)
        attributes[name] = DTYPES[which % len(DTYPES)] if is_type else SHAPES[which % len(SHAPES)](attributes[name])
    return made._replace(case=made.case._replace(attributes=attributes))


def _left_out(made: Application, where: int, which: int) -> Application:
    """An operand left out, or put in another's place."""
    arrays = list(made.case.arrays)
    at = where % len(arrays)
    arrays[at] = None if which % 2 == 0 else arrays[which // 2 % len(arrays)]
    return made._replace(case=made.case._replace(arrays=arrays))


def _added(made: Application, where: int, which: int) -> Application:
    """One operand more: a copy of another, or one like the result."""
    arrays = list(made.case.arrays)
    array = arrays[where % len(arrays)]
    arrays += [] if array is None else [array.astype(DTYPES[which % len(DTYPES)])]
    return made._replace(case=made.case._replace(arrays=arrays))


def _known(made: Application, where: int, which: int) -> Application:
    """An operand that is known beforehand is fed, or the other way round."""
    return made._replace(known=made.known ^ {where % len(made.case.arrays)})


CHANGES = {
    "type": _typed,
    "shape": _shaped,
    "attribute": _stated,
    "without": _left_out,
    "more": _added,
    "known": _known,
}


# --- an application ---------------------------------------------------------------------------------------------------


@functools.cache
def cases(op: str) -> list[Case]:
    """A few applications of an operator."""
    return drawn(CASES[op], _CASES)


def applied(text: bytes) -> Application | None:
    """What a text states; None where it states nothing."""
    try:
        told = json.loads(text)
        op, number, changes = (
            told["op"],
            int(told["case"]),
            [(CHANGES[kind], *map(int, at)) for kind, *at in told["changes"]],
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    if op not in OWN or any(len(change) != 3 for change in changes):
        return None
    case = cases(op)[number % _CASES]
    known = {*KNOWN.get(op, ()), *TABLE[op].parameters} & {*range(1, len(case.arrays))}
    made = Application(op, case, frozenset(known))
    for change, where, which in changes[:4]:
        made = change(made, where, which)
    arrays = list(made.case.arrays)
    while arrays and arrays[-1] is None:
        arrays.pop()
    return made._replace(case=made.case._replace(arrays=arrays)) if arrays else None


def text_of(op: str, case: int, changes: Sequence[tuple[str, int, int]] = ()) -> bytes:
    """What `applied` reads."""
    return json.dumps({"op": op, "case": case, "changes": changes}).encode()


def judge(made: Application) -> int:
    """See that a saved model of an application is refused, or that its kernels compute what its reference does.

    Returns
    -------
    int
        How many ways of computing it were compared; 0: it was refused, or the reference alone computes it.
    """
    arrays = made.case.arrays
    if any(array is not None and array.size > _LARGEST for array in arrays):
        return 0
    try:
        graph = loaded(made)
        if not graph.nodes:  # all of it was known
            return 0
        (node,) = graph.nodes
        offers = [offer for offer in offers_of(graph, node, _MACHINE) if offer is not None]
        build(lay_out(graph, _MACHINE), _MACHINE, Packed())
        if not offers:
            TABLE[made.op].evaluate(node, arrays, [graph.value(name).dtype for name in node.outputs])
            return 0
    except SourceError as error:
        assert made.op in str(error) or "depend on data" in str(error), error
        return 0
    constant = sorted(at for at in made.known if at < len(arrays) and arrays[at] is not None)
    return lowered.check(node, arrays, constant, made=offers, **TOLERANCES.get(made.op, {}))


def loaded(made: Application) -> Graph:
    """The network of an application, written to a file and read again: nothing of it was checked before."""
    graph, path = _graph(made), Path(tempfile.gettempdir(), f"fuzz-{os.getpid()}.cpuconv")
    inputs = {name: graph.value(name) for name in graph.inputs}
    shapes: Any = tuple(value.shape for value in inputs.values())
    ends = graph.name, inputs, {name: graph.value(name) for name in graph.outputs}, graph.outputs
    try:
        programs, blocks = [SavedProgram(shapes, Prepared(graph, [], None), _NONE)], Blocks()
        write(path, blocks, model_header(blocks, ends, None, _OPTIONS, programs, lambda _: {}))
        program = Saved(path).program(shapes)
        assert program is not None
        return program.prepared.graph
    finally:
        path.unlink(missing_ok=True)


def _graph(made: Application) -> Graph:
    """The network of one node, of whose results nothing is known."""
    given = {f"x{at}": array for at, array in enumerate(made.case.arrays) if array is not None}
    names = [name if (name := f"x{at}") in given else "" for at in range(len(made.case.arrays))]
    results = [f"y{at}" for at in range(made.case.outputs)]
    node = TABLE[made.op].node(names, results, **made.case.attributes)
    constants = {name: array.copy() for name, array in given.items() if int(name[1:]) in made.known}
    values = {name: Value(array.shape, array.dtype) for name, array in given.items() if name not in constants}
    return Graph(tuple(values), tuple(results), (node,), constants, values, "fuzzed")


# --- for the fuzzer -------------------------------------------------------------------------------------------------


def read(data: bytes) -> None:
    """Judge what a text states."""
    made = applied(data)
    if made is not None:
        judge(made)


def seeds() -> Iterator[bytes]:
    """Each internal operator as it is, and with an operand changed."""
    for op in sorted(OWN):
        yield text_of(op, 0)
        yield text_of(op, 1, [("type", 0, 9)])


def change(data: bytes, number: int) -> bytes:
    """One change more, or one other."""
    rng = random.Random(number)
    try:
        told = json.loads(data)
        changes = [*told["changes"]][:3]
        if changes and rng.random() < 0.5:
            changes.pop(rng.randrange(len(changes)))
        changes.append((rng.choice([*CHANGES]), rng.randrange(8), rng.randrange(64)))
        return text_of(told["op"], rng.randrange(_CASES), changes)
    except (ValueError, TypeError, LookupError, RecursionError):
        return data


def one_by_one(op: str) -> Iterator[bytes]:
    """An internal operator with every type and every shape of each operand and attribute, one changed at a time."""
    kinds = {"type": DTYPES, "shape": SHAPES, "attribute": max(DTYPES, SHAPES, key=len), "more": DTYPES}
    for number, case in enumerate(cases(op)):
        counts = {"attribute": len(case.attributes)}
        for kind, others in kinds.items():
            for where, which in itertools.product(range(counts.get(kind, len(case.arrays))), range(len(others))):
                yield text_of(op, number, [(kind, where, which)])
