"""A network, ready to run: its programs by sizes of inputs, and by the elements of those that decide sizes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpuconv.errors import ArgumentError, SourceError, must
from cpuconv.graph import passes
from cpuconv.graph.behind import Tail
from cpuconv.graph.chosen import Chosen
from cpuconv.graph.counts import fastest
from cpuconv.graph.elements import check_unchanged, let_go, own
from cpuconv.graph.executable import Executable
from cpuconv.graph.explain import Explanation
from cpuconv.graph.handed import Port, arrays_for, fed, sizes
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.layout import Layout, lay_out
from cpuconv.graph.lowering import Target
from cpuconv.graph.packed import Packed
from cpuconv.graph.passes import Note
from cpuconv.graph.prepared import Prepared, Rewriting, prepared
from cpuconv.graph.profile import Profile, profile, together
from cpuconv.graph.raced import winner
from cpuconv.graph.saved.program import Program, Settings, form_digest, packing_of
from cpuconv.graph.saved.reading import Saved
from cpuconv.graph.saved.writing import write
from cpuconv.graph.specialise import bound_inputs
from cpuconv.graph.steering import steered, steering
from cpuconv.graph.tail import stages
from cpuconv.memory.locks import Lock
from cpuconv.memory.remembered import Remembered, default_limit

Shapes = tuple[tuple[int, ...], ...]
_MOST_BYTES = 1 << 30  # of programs that are kept, packed weights aside; less where memory is small


class _Key(NamedTuple):
    """What tells the programs of a network apart: sizes of its inputs, and the elements of those that steer."""

    shapes: Shapes
    elements: tuple[bytes, ...] = ()


class Model:
    """A network; made by `cpuconv.compile` or `cpuconv.load`. Several threads may run it at once.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        Names, shapes (symbols kept) and dtypes.
    threads : int
        Most threads of a run; where the model decides, of the sizes that ran last.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        shapes: Mapping[str, Sequence[int]],
        options: Rewriting | None = None,
        *,
        source: Callable[[], Graph] | None = None,
        saved: Saved | None = None,
        within: Model | None = None,
        auto: bool = False,
    ) -> None:
        """Make what can be made before sizes are known.

        Parameters
        ----------
        graph : Graph
            What was read, or of a saved model its `graph`.
        target : Target
        shapes : mapping of str to sequence of int
            Of inputs by name, where the graph leaves them open.
        options : Rewriting or None
        source : callable or None
            Gives the graph again, for `save`, when it has been let go of.
        saved : Saved or None
            The saved model that it is of.
        within : Model or None
            The model that it is a part of; they share packed weights.
        auto : bool
            Whether each program takes as many threads as are fastest, at most the target's.
        """
        self._source, self._saved = source, saved
        self._known = bound_inputs(graph, shapes)
        self._name, self._target, self._options = graph.name, target, options or Rewriting()
        self._settings = Settings.of(target, self._options)
        self._steering = steering(graph)
        self._graph: Graph | None = graph
        self._notes: list[Note] = []  # of rewrites for all sizes
        if not self._is_fixed:
            self._graph, self._notes = passes.apply_without_sizes(graph, self._options.skip_passes)
        self.threads, self._auto = target.threads, auto
        self.inputs = tuple(_port(name, value) for name, value in self._known.items())
        self.outputs = tuple(_port(name, graph.value(name)) for name in graph.outputs)
        self._packed: Packed = Packed(None if saved is None else saved.packed) if within is None else within._packed
        self._chosen: dict[tuple[int, int], Chosen] = {}  # by binary digits of the number of input elements, threads
        self._programs = Remembered(min(_MOST_BYTES, default_limit()))
        self._last: tuple[_Key, _Made] | None = None  # stays, however large
        self._making: Lock = Lock() if within is None else within._making
        if self._is_fixed:
            made = self._for(self._fixed_shapes())
            known = made.executable.outputs
            self.outputs = tuple(_port(name, known.get(name, graph.value(name))) for name in graph.outputs)

    def __repr__(self) -> str:
        ends = [", ".join(map(str, ports)) for ports in (self.inputs, self.outputs)]
        return f"<cpuconv.Model {self._name}: {ends[0]} -> {ends[1]}>"

    def __call__(self, x: Any) -> Any:
        """The result for a network of one input: an array if it has one output, else a dict of them.

        Raises
        ------
        ArgumentError
            The network has another number of inputs.
        """
        if len(self.inputs) != 1:
            names = ", ".join(port.name for port in self.inputs)
            raise ArgumentError(must("x", f"a dict of {names}, given to run()", "one array"))
        results = self.run({self.inputs[0].name: x})
        return next(iter(results.values())) if len(results) == 1 else results

    def run(self, feed: Mapping[str, Any], out: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Run the network.

        Parameters
        ----------
        feed : mapping of str to array
            An array for each input, of its shape and dtype. One that is not C-contiguous is copied.
        out : mapping of str to numpy.ndarray, or None
            C-contiguous arrays for some outputs, which overlap neither inputs nor each other; the others are made.
            None for outputs whose sizes depend on elements.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs by name.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A feed or an output array has a wrong name, rank, size or dtype; the message names it.

        Notes
        -----
        NaN and infinities reach whatever is computed from them. Winograd and FFT convolutions spread them within a tile
        or a plane of their image; `accuracy="exact"` takes none of these. Denormals are numbers like others.
        """
        arrays = fed(self.inputs, feed)
        made, given = self._program(arrays)
        outputs = arrays_for(made.executable.outputs, {} if out is None else out, arrays)
        before = made.nbytes
        made.executable.run(given, list(outputs.values()))
        if made.tail is not None:
            outputs = made.tail.finished({**dict(zip(self._known, arrays, strict=True)), **outputs})
        if made.nbytes != before:  # memory for one more caller at a time, or for other sizes that were found
            self._keep(made)
        return outputs

    def profile(self, feed: Mapping[str, Any], runs: int = 20, *, watch: bool = False) -> Profile:
        """Time each operator alone, and whole runs.

        Parameters
        ----------
        feed : mapping of str to array
            As for `run`.
        runs : int
            How often each is timed; medians are reported.
        watch : bool
            Whether to note too who did what when in a run, by kernels that look at the clock before and after.
        """
        if isinstance(runs, bool) or not hasattr(runs, "__index__") or int(runs) < 1:
            raise ArgumentError(must("runs", "an integer, 1 or more", repr(runs)))
        arrays = fed(self.inputs, feed)
        made, given = self._program(arrays)
        outputs = arrays_for(made.executable.outputs, {}, arrays)
        head = profile(made.executable, given, list(outputs.values()), int(runs), watch=watch)
        if made.tail is None:
            return head
        values = {**dict(zip(self._known, arrays, strict=True)), **outputs}
        return together([head, *made.tail.profiles(values, int(runs))])

    def explain(self) -> Explanation:
        """What was fused, folded and removed; layouts and algorithm of each operator; bytes of arena and weights.

        It is of the sizes that the model states or that ran last.

        Raises
        ------
        SourceError
            Sizes are open, and nothing has run yet.
        """
        made = self._for(self._fixed_shapes()) if self._last is None else self._last[1]
        explanation = self._explained(made) if made.explanation is None else made.explanation
        return explanation if made.tail is None else made.tail.explained(explanation)

    @property
    def nbytes(self) -> int:
        """Bytes of programs that are kept; packed weights are not counted."""
        return self._programs.nbytes

    @property
    def has_run(self) -> bool:
        """Whether sizes are known that `explain` can tell of."""
        return self._last is not None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file that `cpuconv.load` reads, without the package onnx.

        It holds the network, what was chosen for the sizes that ran, and the weights, raw and packed. It replaces a
        file of that name at once, when it is whole.

        Raises
        ------
        OSError
            The file cannot be written.
        SourceError
            The file that the model was compiled from has changed or is gone.
        """
        with self._making:
            graph = self._graph
            if graph is not None:
                check_unchanged(graph.constants.values())
                graph = replace(graph, values={**graph.values, **self._known})
            if self._saved is not None:
                self._saved.check_graph()
            ends = self._name, self._known, {port.name: Value(port.shape, port.dtype) for port in self.outputs}
            settings = replace(self._settings, threads=self.threads)  # those that are fastest, if they were to be found
            write(Path(path), ends, graph, settings, self._kept(), self._forms)

    def sealed(self) -> Model:
        """The model, which lets go of what only `save` needs; that fails from now on."""
        self._source = None
        return self

    # --- programs by sizes ----------------------------------------------------------------------------------------

    def _fixed_shapes(self) -> Shapes:
        """The sizes of the inputs, where model and arguments state them all.

        Raises
        ------
        SourceError
            Some are open, or elements decide sizes.
        """
        if self._steering:
            raise SourceError(must(self._steering[0], "fed: its elements decide sizes; run the model first", "unknown"))
        for name, value in self._known.items():
            if not value.concrete:
                expected = "of fixed sizes: run the model first, or state them in 'input_shapes'"
                raise SourceError(must(name, expected, value))
        return tuple(sizes(value) for value in self._known.values())

    @property
    def _is_fixed(self) -> bool:
        """Whether one program is all there will be."""
        return not self._steering and all(value.concrete for value in self._known.values())

    def _program(self, arrays: Sequence[np.ndarray]) -> tuple[_Made, list[np.ndarray]]:
        """The program for arrays of all inputs, and the arrays that it is given."""
        shapes = tuple(array.shape for array in arrays)
        if not self._steering:
            return self._for(shapes), list(arrays)
        named = dict(zip(self._known, arrays, strict=True))
        steers = {name: named.pop(name) for name in self._steering}
        return self._for(shapes, steers), list(named.values())

    def _for(self, shapes: Shapes, steers: Mapping[str, np.ndarray] | None = None) -> _Made:
        """The program for inputs of these shapes; made at first use, and again if it was forgotten since.

        `steers` are the arrays of inputs whose elements decide sizes.
        """
        steers = steers or {}
        key, last = _Key(shapes, tuple(array.tobytes() for array in steers.values())), self._last
        if last is not None and last[0] == key:
            return last[1]
        made: _Made | None = self._programs.get(key)
        if made is None:
            with self._making:
                made = self._programs.get(key)
                if made is None:
                    made = self._make(key, steers)
                    self._keep(made)
        self._last = key, made
        self.threads = made.executable.target.threads
        return made

    def _keep(self, made: _Made) -> None:
        """Keep a program, as large as it is now, and forget those used least recently for it."""
        self._programs.put(made.key, made, made.nbytes)

    def _make(self, key: _Key, steers: Mapping[str, np.ndarray]) -> _Made:
        named = dict(zip(self._known, key.shapes, strict=True))
        if self._graph is None:  # all sizes are fixed, and the program is made
            wrong = next(name for name, shape in named.items() if shape != sizes(self._known[name]))
            raise ArgumentError(must(f"feed[{wrong!r}]", f"of shape {sizes(self._known[wrong])}", named[wrong]))
        for name, value in self._known.items():
            if not value.fits(named[name]):
                raise ArgumentError(must(f"feed[{name!r}]", f"of a shape that fits {value}", named[name]))
        bound_inputs(self._graph, named, "feed")  # equal symbols, equal sizes
        order, raw = self._graph.outputs, self._graph.constants.values()
        steers = {name: array.copy() for name, array in steers.items()}
        (graph, notes, late), chosen = self._prepared(key, steers, noted=self._is_fixed)
        let_go(raw)
        with nullcontext() if self._saved is None else self._saved.built():
            if self._auto:
                laid, executable = fastest(
                    lambda target: self._laid_out(graph, key, chosen, target), self._target, self._packed
                )
            else:
                laid = self._laid_out(graph, key, chosen, self._target)
                del graph  # so that what was computed of weights goes as it is packed
                executable = Executable(laid, self._target, self._packed)
        tail = None if late is None else Tail(stages(_owned(late)), order, self._behind)
        let_go(raw)
        made = _Made(key, steers, executable, tail, laid.chosen())
        if not self._is_fixed:
            return made
        self._graph = None  # raw weights are not kept beside packed ones
        return replace(made, explanation=Explanation.of(self._name, laid, executable, notes))

    def _prepared(self, key: _Key, steers: Mapping[str, np.ndarray], *, noted: bool) -> tuple[Prepared, Chosen | None]:
        """The graph for a program; and what a saved model chose for it, if that is to be followed."""
        if self._saved is not None:
            program = None if steers else self._saved.program(key.shapes)
            if program is not None:
                return program.prepared, program.chosen if self._follows else None
            self._saved.check_graph()
        graph = self._graph
        if graph is None:
            if self._source is None:
                raise SourceError(f"{self._name} cannot be saved: it was not made by cpuconv.compile.")
            graph = self._source()
        check_unchanged(graph.constants.values())
        named = {name: shape for name, shape in zip(self._known, key.shapes, strict=True) if name not in steers}
        return prepared(steered(graph, steers), named, self._options, noted=noted), None

    @property
    def _follows(self) -> bool:
        """Whether choices of the saved model are followed: for this CPU, with the same options."""
        return self._saved is not None and self._saved.fits and self._saved.settings == self._settings

    def _explained(self, made: _Made) -> Explanation:
        """What became of the network for these sizes: derived once more, as a new size does not wait for it."""
        ready, chosen = self._prepared(made.key, made.steers, noted=True)
        laid = self._laid_out(ready.graph, made.key, chosen, made.executable.target)
        return Explanation.of(self._name, laid, made.executable, [*self._notes, *ready.notes])

    def _laid_out(self, graph: Graph, key: _Key, chosen: Chosen | None, target: Target) -> Layout:
        """A graph laid out as a record says; by the plan that won a race; or as the first one was about as large."""
        if chosen is not None:
            return lay_out(graph, target, chosen)
        plan = winner(graph, target)
        if plan is not None:
            return lay_out(graph, target, plan=plan)
        about = sum(map(math.prod, key.shapes)).bit_length(), target.threads
        laid = lay_out(graph, target, self._chosen.get(about))
        if about not in self._chosen:
            self._chosen[about] = laid.chosen()
        return laid

    def _behind(self, graph: Graph) -> Model:
        """A part of this network that runs for sizes which are found when it runs."""
        return Model(graph, self._target, {}, self._options, within=self)

    # --- what is saved --------------------------------------------------------------------------------------------

    def _kept(self) -> Iterator[Program]:
        """The programs to save: those of this model, and those of the file that it is of.

        Those for elements that decide sizes are left out: they are many, and of one feed each. So are those that may
        have other numbers of threads than others.
        """
        programs: dict[Any, _Made] = dict(self._programs.items())
        if self._last is not None:
            programs[self._last[0]] = self._last[1]
        if self._steering or (self._auto and not self._is_fixed):
            return
        for key, made in programs.items():
            ready, _ = self._prepared(key, {}, noted=True)
            yield Program(key.shapes, ready._replace(notes=[*self._notes, *ready.notes]), made.chosen)
        if self._saved is not None and self._follows:
            for shapes in self._saved.shapes:
                program = None if _Key(shapes) in programs else self._saved.program(shapes)
                if program is not None:
                    yield program

    def _forms(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """What a constant is packed to, by form."""
        forms = {} if self._saved is None else self._saved.forms(array)
        packed = self._packed.forms(array)
        return forms | {form_digest(array.shape, form): made for form, made in packed if packing_of(form) is not None}


def _owned(graph: Graph) -> Graph:
    """A graph that holds no memory of the model's file."""
    return replace(graph, constants={name: own(array) for name, array in graph.constants.items()})


def _port(name: str, value: Value) -> Port:
    return Port(name, value.shape, value.dtype)


@dataclass(frozen=True)
class _Made:
    """A program and what it is for; what runs behind it."""

    key: _Key
    steers: Mapping[str, np.ndarray]
    executable: Executable
    tail: Tail | None
    chosen: Chosen
    explanation: Explanation | None = None  # None: made when asked for

    @property
    def nbytes(self) -> int:
        """Bytes that are free once it is forgotten."""
        return self.executable.nbytes + (0 if self.tail is None else self.tail.nbytes)
