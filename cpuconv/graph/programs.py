"""The programs of a network, by sizes of inputs, and by the elements of those that decide sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cpuconv.graph.behind import Network, Tail
from cpuconv.graph.counts import fastest
from cpuconv.graph.elements import let_go, own
from cpuconv.graph.ir import Graph
from cpuconv.graph.lowering import Target
from cpuconv.graph.origin import Origin
from cpuconv.graph.reports.explain import Explanation
from cpuconv.graph.running.executable import Executable
from cpuconv.graph.running.packed import Packed
from cpuconv.graph.saved.program import Program, Shapes, form_digest, packing_of
from cpuconv.graph.selection.chosen import Chosen
from cpuconv.graph.selection.layout import Layout, lay_out
from cpuconv.graph.selection.raced import winner
from cpuconv.graph.sizes.tail import stages
from cpuconv.memory.locks import Lock
from cpuconv.memory.remembered import Remembered, default_limit

_MOST_BYTES = 1 << 30  # of programs that are kept, packed weights aside; less where memory is small


class Key(NamedTuple):
    """What tells the programs of a network apart: sizes of its inputs, and the elements of those that steer."""

    shapes: Shapes
    elements: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Made:
    """A program and what it is for; what runs behind it."""

    key: Key
    steers: Mapping[str, np.ndarray]
    executable: Executable
    tail: Tail | None
    chosen: Chosen
    explanation: Explanation | None = None  # None: made when asked for

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
    last : Made or None
        The one that was asked for last; it stays, however large.
    """

    def __init__(
        self,
        origin: Origin,
        target: Target,
        behind: Callable[[Graph, Programs], Network],
        *,
        within: Programs | None = None,
        auto: bool = False,
    ) -> None:
        """Remember none yet.

        Parameters
        ----------
        origin : Origin
        target : Target
        behind : callable
            Makes a part of the network, which runs for sizes that are found when it runs, a network of its own.
        within : Programs or None
            Those of the network that this one is a part of; they share packed weights.
        auto : bool
            Whether each program takes as many threads as are fastest, at most the target's.
        """
        saved = origin.saved
        self._origin, self._target, self._behind, self._auto = origin, target, behind, auto
        self.packed: Packed = Packed(None if saved is None else saved.packed) if within is None else within.packed
        self.making: Lock = Lock() if within is None else within.making
        self.last: Made | None = None
        self._remembered = Remembered(min(_MOST_BYTES, default_limit()))
        self._chosen: dict[tuple[int, int], Chosen] = {}  # by `_digits` of inputs, and threads

    def __len__(self) -> int:
        return len(self._remembered)

    @property
    def nbytes(self) -> int:
        """Bytes of those that are remembered; packed weights are not counted."""
        return self._remembered.nbytes

    @property
    def threads(self) -> int:
        """Most threads of a run; where each program decides, of the one that was asked for last."""
        return self._target.threads if self.last is None else self.last.executable.target.threads

    @property
    def choices(self) -> int:
        """For how many ranges of sizes layouts were chosen, which other sizes of that range take."""
        return len(self._chosen)

    def resize(self, limit: int) -> None:
        """Remember no more than so many bytes from now on."""
        self._remembered.resize(limit)

    def clear(self) -> None:
        """Forget all but the last."""
        self._remembered.clear()

    def fitting(self, arrays: Sequence[np.ndarray]) -> tuple[Made, list[np.ndarray]]:
        """The program for arrays of all inputs, and the arrays that it is given."""
        shapes = tuple(array.shape for array in arrays)
        if not self._origin.steering:
            return self.find(shapes), list(arrays)
        named = dict(zip(self._origin.inputs, arrays, strict=True))
        steers = {name: named.pop(name) for name in self._origin.steering}
        return self.find(shapes, steers), list(named.values())

    def find(self, shapes: Shapes, steers: Mapping[str, np.ndarray] | None = None) -> Made:
        """The program for inputs of these shapes; made at first use, and again if it was forgotten since.

        `steers` are the arrays of inputs whose elements decide sizes.
        """
        steers = steers or {}
        key, last = Key(shapes, tuple(array.tobytes() for array in steers.values())), self.last
        if last is not None and last.key == key:
            return last
        made: Made | None = self._remembered.get(key)
        if made is None:
            with self.making:
                made = self._remembered.get(key)
                if made is None:
                    made = self._make(key, steers)
                    self.remember(made)
        self.last = made
        return made

    def remember(self, made: Made) -> None:
        """Remember a program, as large as it is now, and forget those used least recently for it."""
        self._remembered.put(made.key, made, made.nbytes)

    def explained(self, made: Made) -> Explanation:
        """What became of the network for a program; if need be derived once more, as a new size does not wait for it.

        What runs behind the program is left out.
        """
        if made.explanation is not None:
            return made.explanation
        ready, chosen = self._origin.prepared(made.key.shapes, made.steers, noted=True)
        laid = self._laid_out(ready.graph, made.key, chosen, made.executable.target)
        return Explanation.of(self._origin.name, laid, made.executable, [*self._origin.notes, *ready.notes])

    # --- making ---------------------------------------------------------------------------------------------------

    def _make(self, key: Key, steers: Mapping[str, np.ndarray]) -> Made:
        origin = self._origin
        whole = origin.graph_for(key.shapes)
        order, raw = whole.outputs, whole.constants.values()
        del whole
        steers = {name: array.copy() for name, array in steers.items()}
        (graph, notes, late), chosen = origin.prepared(key.shapes, steers, noted=origin.is_fixed)
        let_go(raw)
        with nullcontext() if origin.saved is None else origin.saved.built():
            if self._auto:
                laid, executable = fastest(
                    lambda target: self._laid_out(graph, key, chosen, target), self._target, self.packed
                )
            else:
                laid = self._laid_out(graph, key, chosen, self._target)
                del graph  # so that what was computed of weights goes as it is packed
                executable = Executable(laid, self._target, self.packed)
        tail = None if late is None else Tail(stages(_owned(late)), order, lambda part: self._behind(part, self))
        let_go(raw)
        made = Made(key, steers, executable, tail, laid.chosen())
        if not origin.is_fixed:
            return made
        origin.let_go()
        return replace(made, explanation=Explanation.of(origin.name, laid, executable, notes))

    def _laid_out(self, graph: Graph, key: Key, chosen: Chosen | None, target: Target) -> Layout:
        """A graph laid out as a record says; by the plan that won a race; or as the first one was about as large."""
        if chosen is not None:
            return lay_out(graph, target, chosen)
        plan = winner(graph, target)
        if plan is not None:
            return lay_out(graph, target, plan=plan)
        about = _digits(key.shapes), target.threads
        known = self._chosen.get(about) or self._saved_choice(key.shapes)
        laid = lay_out(graph, target, known)
        self._chosen[about] = known or laid.chosen()
        return laid

    def _saved_choice(self, shapes: Shapes) -> Chosen | None:
        """What a saved model chose for a size about as large, if that is to be followed."""
        saved = self._origin.saved
        if saved is None or not self._origin.follows:
            return None
        like = next((each for each in saved.shapes if _digits(each) == _digits(shapes)), None)
        return None if like is None else saved.chosen(like)

    # --- what is saved --------------------------------------------------------------------------------------------

    def to_save(self) -> Iterator[Program]:
        """The programs to save: those of this network, and those of the file that it is of.

        Those for elements that decide sizes are left out: they are many, and of one feed each. So are those that may
        have other numbers of threads than others.
        """
        origin = self._origin
        programs: dict[Any, Made] = dict(self._remembered.items())
        if self.last is not None:
            programs[self.last.key] = self.last
        if origin.steering or (self._auto and not origin.is_fixed):
            return
        for key, made in programs.items():
            ready, _ = origin.prepared(key.shapes, {}, noted=True)
            yield Program(key.shapes, ready._replace(notes=[*origin.notes, *ready.notes]), made.chosen)
        if origin.saved is not None and origin.follows:
            for shapes in origin.saved.shapes:
                program = None if Key(shapes) in programs else origin.saved.program(shapes)
                if program is not None:
                    yield program

    def forms(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """What a constant is packed to, by form."""
        forms = {} if self._origin.saved is None else self._origin.saved.forms(array)
        packed = self.packed.forms(array)
        return forms | {form_digest(array.shape, form): made for form, made in packed if packing_of(form) is not None}


def _digits(shapes: Shapes) -> int:
    """Binary digits of the number of elements: sizes with as many are about as large."""
    return sum(map(math.prod, shapes)).bit_length()


def _owned(graph: Graph) -> Graph:
    """A graph that holds no memory of the model's file."""
    return replace(graph, constants={name: own(array) for name, array in graph.constants.items()})
