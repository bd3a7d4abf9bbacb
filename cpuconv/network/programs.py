"""The programs of a network, by sizes of inputs, and by the elements of those that decide sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from autotune.locks import Lock
from cpuconv.conv.remembering.remembered import Remembered, default_limit
from cpuconv.graph.ir import Graph
from cpuconv.graph.lowering import Target
from cpuconv.graph.mapped_constants import let_go, own
from cpuconv.network.definition import Definition
from cpuconv.network.dynamic_suffix import Network, Tail
from cpuconv.network.reports.explain import Explanation
from cpuconv.network.running.building import build
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.saved.program import SavedProgram, Shapes, form_digest, packing_of
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.selection.layout import Layout, lay_out
from cpuconv.network.selection.winners import winner
from cpuconv.network.sizes.cutting import stages
from cpuconv.network.thread_count import fastest

_MOST_BYTES = 1 << 30  # of programs that are kept, packed weights aside; less where memory is small


class Key(NamedTuple):
    """What tells the programs of a network apart: sizes of its inputs, and the elements of those that decide sizes."""

    shapes: Shapes
    elements: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Program:
    """What runs for inputs of certain sizes.

    Attributes
    ----------
    key : Key
        What it is for.
    shape_arrays : mapping of str to numpy.ndarray
        Arrays of the inputs whose elements decide sizes, which it has as constants.
    executable : Executable
    tail : Tail or None
        What runs after it, for sizes that it finds.
    decisions : Decisions
        How each node is computed.
    explanation : Explanation or None
        None: made when asked for.
    """

    key: Key
    shape_arrays: Mapping[str, np.ndarray]
    executable: Executable
    tail: Tail | None
    decisions: Decisions
    explanation: Explanation | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are free once it is forgotten."""
        return self.executable.nbytes + (0 if self.tail is None else self.tail.nbytes)


class Programs:
    """Makes programs when they are asked for first, and remembers them; several threads may ask at once.

    Attributes
    ----------
    packed : Packed
        The weights that they share.
    making : Lock
        Held while one is made.
    last : Program or None
        The one that was asked for last; it stays, however large.
    """

    def __init__(
        self,
        definition: Definition,
        target: Target,
        network_of: Callable[[Graph, Programs], Network],
        *,
        parent: Programs | None = None,
        auto: bool = False,
    ) -> None:
        """Remember none yet.

        Parameters
        ----------
        definition : Definition
        target : Target
        network_of : callable
            Makes a part of the network, which runs for sizes that are found when it runs, a network of its own.
        parent : Programs or None
            Those of the network that this one is a part of; they share packed weights.
        auto : bool
            Whether each program takes as many threads as are fastest, at most the target's.
        """
        saved = definition.saved
        self._definition, self._target, self._network_of, self._auto = definition, target, network_of, auto
        self.packed: Packed = Packed(None if saved is None else saved.packed) if parent is None else parent.packed
        self.making: Lock = Lock(brief=False) if parent is None else parent.making
        self.last: Program | None = None
        self._remembered = Remembered(min(_MOST_BYTES, default_limit()))
        self._decisions: dict[tuple[int, int], Decisions] = {}  # by `_digits` of inputs, and threads

    def __len__(self) -> int:
        return len(self._remembered)

    @property
    def nbytes(self) -> int:
        """Bytes of those that are kept, with the memory of all their runs; packed weights are not counted."""
        kept: dict[int, Program] = {id(made): made for _, made in self._remembered.items()}
        if self.last is not None:
            kept[id(self.last)] = self.last
        return sum(made.nbytes for made in kept.values())

    @property
    def threads(self) -> int:
        """Most threads of a run; where each program decides, of the one that was asked for last."""
        return self._target.threads if self.last is None else self.last.executable.target.threads

    @property
    def choices(self) -> int:
        """For how many ranges of sizes layouts were chosen, which other sizes of that range take."""
        return len(self._decisions)

    def resize(self, limit: int) -> None:
        """Remember no more than so many bytes from now on."""
        self._remembered.resize(limit)

    def clear(self) -> None:
        """Forget all but the last."""
        self._remembered.clear()

    def fitting(self, arrays: Sequence[np.ndarray]) -> tuple[Program, list[np.ndarray]]:
        """The program for arrays of all inputs, and the arrays that it is given."""
        shapes = tuple(array.shape for array in arrays)
        if not self._definition.shape_inputs:
            return self.find(shapes), list(arrays)
        named = dict(zip(self._definition.inputs, arrays, strict=True))
        shape_arrays = {name: named.pop(name) for name in self._definition.shape_inputs}
        return self.find(shapes, shape_arrays), list(named.values())

    def find(self, shapes: Shapes, shape_arrays: Mapping[str, np.ndarray] | None = None) -> Program:
        """The program for inputs of these shapes; made at first use, and again if it was forgotten since.

        `shape_arrays` are the arrays of inputs whose elements decide sizes.
        """
        shape_arrays = shape_arrays or {}
        key, last = Key(shapes, tuple(array.tobytes() for array in shape_arrays.values())), self.last
        if last is not None and last.key == key:
            return last
        made: Program | None = self._remembered.get(key)
        if made is None:
            with self.making:
                made = self._remembered.get(key)
                if made is None:
                    made = self._make(key, shape_arrays)
                    self.remember(made)
        self.last = made
        return made

    def remember(self, made: Program) -> None:
        """Remember a program, as large as it is now, and forget those used least recently for it."""
        self._remembered.put(made.key, made, made.nbytes)

    def explained(self, made: Program) -> Explanation:
        """What became of the network for a program; if need be derived once more, as a new size does not wait for it.

        What runs behind the program is left out.
        """
        if made.explanation is not None:
            return made.explanation
        ready, decisions = self._definition.prepared(made.key.shapes, made.shape_arrays, noted=True)
        laid = self._laid_out(ready.graph, made.key, decisions, made.executable.target)
        return Explanation.of(self._definition.name, laid, made.executable, [*self._definition.notes, *ready.notes])

    # --- making ---------------------------------------------------------------------------------------------------

    def _make(self, key: Key, shape_arrays: Mapping[str, np.ndarray]) -> Program:
        definition = self._definition
        whole = definition.graph_for(key.shapes)
        order, raw = whole.outputs, whole.constants.values()
        del whole
        shape_arrays = {name: array.copy() for name, array in shape_arrays.items()}
        (graph, notes, late), decisions = definition.prepared(key.shapes, shape_arrays, noted=definition.is_fixed)
        let_go(raw)
        with nullcontext() if definition.saved is None else definition.saved.built():
            if self._auto:
                laid, executable = fastest(
                    lambda target: self._laid_out(graph, key, decisions, target), self._target, self.packed
                )
            else:
                laid = self._laid_out(graph, key, decisions, self._target)
                del graph  # so that what was computed of weights goes as it is packed
                executable = build(laid, self._target, self.packed)
        tail = None if late is None else Tail(stages(_owned(late)), order, lambda part: self._network_of(part, self))
        let_go(raw)
        made = Program(key, shape_arrays, executable, tail, laid.decisions())
        if not definition.is_fixed:
            return made
        definition.let_go()
        return replace(made, explanation=Explanation.of(definition.name, laid, executable, notes))

    def _laid_out(self, graph: Graph, key: Key, decisions: Decisions | None, target: Target) -> Layout:
        """A graph laid out as a record says; by the plan that won a race; or as the first one was about as large."""
        if decisions is not None:
            return lay_out(graph, target, decisions)
        plan = winner(graph, target)
        if plan is not None:
            return lay_out(graph, target, plan=plan)
        about = _digits(key.shapes), target.threads
        known = self._decisions.get(about) or self._saved_decisions(key.shapes)
        laid = lay_out(graph, target, known)
        self._decisions[about] = known or laid.decisions()
        return laid

    def _saved_decisions(self, shapes: Shapes) -> Decisions | None:
        """What was saved for a size about as large, if that is to be followed."""
        saved = self._definition.saved
        if saved is None or not self._definition.follows:
            return None
        like = next((each for each in saved.shapes if _digits(each) == _digits(shapes)), None)
        return None if like is None else saved.decisions(like)

    # --- what is saved --------------------------------------------------------------------------------------------

    def to_save(self) -> Iterator[SavedProgram]:
        """The programs to save: those of this network, and those of the file that it is of.

        Those for elements that decide sizes are left out: they are many, and of one feed each. So are those that may
        have other numbers of threads than others.
        """
        definition = self._definition
        programs: dict[Any, Program] = dict(self._remembered.items())
        if self.last is not None:
            programs[self.last.key] = self.last
        if definition.shape_inputs or (self._auto and not definition.is_fixed):
            return
        for key, made in programs.items():
            ready, _ = definition.prepared(key.shapes, {}, noted=True)
            yield SavedProgram(key.shapes, ready._replace(notes=[*definition.notes, *ready.notes]), made.decisions)
        if definition.saved is not None and definition.follows:
            for shapes in definition.saved.shapes:
                program = None if Key(shapes) in programs else definition.saved.program(shapes)
                if program is not None:
                    yield program

    def forms(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """What a constant is packed to, by form."""
        forms = {} if self._definition.saved is None else self._definition.saved.forms(array)
        packed = self.packed.forms(array)
        return forms | {form_digest(array.shape, form): made for form, made in packed if packing_of(form) is not None}


def _digits(shapes: Shapes) -> int:
    """Binary digits of the number of elements: sizes with as many are about as large."""
    return sum(map(math.prod, shapes)).bit_length()


def _owned(graph: Graph) -> Graph:
    """A graph that holds no memory of the model's file."""
    return replace(graph, constants={name: own(array) for name, array in graph.constants.items()})
