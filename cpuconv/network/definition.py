"""The definition of a network, before sizes are known: what was compiled or loaded, and what programs are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cpuconv.errors import ArgumentError, SourceError, must
from cpuconv.graph.control import is_control
from cpuconv.graph.ir import Graph
from cpuconv.memory.mapped_files import check_unchanged
from cpuconv.network.notes import Note, note
from cpuconv.network.ports import sizes
from cpuconv.network.saved.program import Settings, Shapes
from cpuconv.network.saved.reading import Saved
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.sizes.cutting import Parts
from cpuconv.network.sizes.prepared import Prepared, Rewriting, prepared
from cpuconv.network.sizes.shape_inputs import shape_inputs, with_constants
from cpuconv.network.sizes.specialise import bound_inputs
from cpuconv.network.sizes.templates import Templates, lasting


class Definition:
    """A network before sizes are known.

    Attributes
    ----------
    name : str
    inputs : mapping of str to Value
        Its inputs, with the sizes that are stated.
    outputs : mapping of str to Value
        Its outputs, as far as they are known before sizes are.
    order : tuple of str
        Its outputs as they are listed, where one may occur twice.
    defaults : mapping of str to Value
        What is stated of the constants that may be fed.
    shape_inputs : tuple of str
        Those inputs whose elements decide sizes.
    settings : Settings
    saved : Saved or None
        The saved model that it is of.
    graph : Graph or None
        Rewritten as far as that holds for all sizes; None once it has been let go of.
    notes : list of Note
        Of those rewrites.
    templates : Templates
        Of its graph, rewritten for sizes.
    """

    def __init__(
        self,
        graph: Graph,
        shapes: Mapping[str, Sequence[int]],
        settings: Settings,
        source: Callable[[], Graph] | None,
        saved: Saved | None,
        *,
        part: bool = False,
        body: bool = False,
    ) -> None:
        """Hold what was compiled or loaded.

        Parameters
        ----------
        graph : Graph
        shapes : mapping of str to sequence of int
            Of inputs by name, where the graph leaves them open.
        settings : Settings
        source : callable or None
            Gives the graph again, when it has been let go of.
        saved : Saved or None
        part : bool
            Whether it is a part of another network, which has warned of operators without kernels.
        body : bool
            Whether elements of inputs decide no sizes, as those of a body differ in each run; sizes that depend on them
            are found in the run.
        """
        self.name, self.settings, self.saved, self._source = graph.name, settings, saved, source
        self._part = part
        self.inputs, self.shape_inputs = bound_inputs(graph, shapes), () if body else shape_inputs(graph)
        self.order, self.defaults = graph.outputs, graph.defaults
        graph = _once(graph)
        self.outputs = {name: replace(graph.value(name), array=None) for name in graph.outputs}
        self.graph: Graph | None = graph
        self.notes: list[Note] = []
        self.templates = Templates(self.inputs)
        if not self.is_fixed:
            from cpuconv.graph import passes  # what was saved with all sizes fixed needs no rewrites

            watch, skip = partial(note, self.notes), settings.rewriting.skip_passes
            self.graph = lasting(passes.apply_without_sizes(graph, skip, watch), graph)

    @property
    def is_fixed(self) -> bool:
        """Whether one program is all there will be."""
        return not self.shape_inputs and all(value.concrete for value in self.inputs.values())

    @property
    def follows(self) -> bool:
        """Whether choices of the saved model are followed: for this CPU, with the same options."""
        return self.saved is not None and self.saved.fits and self.saved.settings == self.settings

    def fixed_shapes(self) -> Shapes:
        """The sizes of the inputs, where model and arguments state them all.

        Raises
        ------
        SourceError
            Some are open, or elements decide sizes.
        """
        if self.shape_inputs:
            raise SourceError(
                must(self.shape_inputs[0], "fed: its elements decide sizes; run the model first", "unknown")
            )
        for name, value in self.inputs.items():
            if not value.concrete:
                expected = "of fixed sizes: run the model first, or state them in 'input_shapes'"
                raise SourceError(must(name, expected, value))
        return tuple(sizes(value) for value in self.inputs.values())

    def graph_for(self, shapes: Shapes) -> Graph:
        """The graph, if a program for inputs of these shapes can be made.

        Raises
        ------
        ArgumentError
            They do not fit what is stated of the inputs, or each other.
        """
        named = dict(zip(self.inputs, shapes, strict=True))
        if self.graph is None:  # all sizes are fixed, and the program is made
            wrong = next(name for name, shape in named.items() if shape != sizes(self.inputs[name]))
            raise ArgumentError(must(f"feed[{wrong!r}]", f"of shape {sizes(self.inputs[wrong])}", named[wrong]))
        for name, value in self.inputs.items():
            if not value.fits(named[name]):
                raise ArgumentError(must(f"feed[{name!r}]", f"of a shape that fits {value}", named[name]))
        bound_inputs(self.graph, named, "feed")  # equal symbols, equal sizes
        return self.graph

    def prepared(
        self, shapes: Shapes, shape_arrays: Mapping[str, np.ndarray], *, noted: bool
    ) -> tuple[Prepared, Decisions | None]:
        """The graph for a program; and what a saved model chose for it, if that is to be followed.

        Parameters
        ----------
        shapes : tuple of tuple of int
            Of all inputs.
        shape_arrays : mapping of str to numpy.ndarray
            Arrays of the inputs whose elements decide sizes.
        noted : bool
            Whether to tell what the rewrites did.
        """
        if self.saved is not None:
            program = None if shape_arrays else self.saved.program(shapes)
            if program is not None:
                return program.prepared, program.decisions if self.follows else None
            self.saved.check_graph()
        graph = self.original() if self.graph is None else self.graph
        check_unchanged(graph.constants.values())
        named = {name: shape for name, shape in zip(self.inputs, shapes, strict=True) if name not in shape_arrays}
        options = self.settings.rewriting
        if not (noted or shape_arrays or self.is_fixed):
            ready = self.templates.graph(shapes, graph, partial(_ready, graph, options, self._part))
            if ready is not None:
                return Prepared(ready.head, [], ready.tail), None
        return prepared(with_constants(graph, shape_arrays), named, options, noted=noted, quiet=self._part), None

    def original(self) -> Graph:
        """The graph as it was read.

        Raises
        ------
        SourceError
            It is not there any more.
        """
        if self.saved is not None:
            self.saved.check_graph()
        if self._source is None:
            raise SourceError(f"{self.name} cannot be saved: it was not made by cpuconv.compile.")
        return _once(self._source())

    def let_go(self) -> None:
        """Let go of the graph, as all programs are made: raw weights are not kept beside packed ones."""
        self.graph = None


def _once(graph: Graph) -> Graph:
    """The graph with each of its outputs listed once."""
    outputs = tuple(dict.fromkeys(graph.outputs))
    return graph if outputs == graph.outputs else replace(graph, outputs=outputs)


def _ready(graph: Graph, options: Rewriting, quiet: bool, shapes: Mapping[str, Sequence[int]]) -> Parts | None:
    """What `prepared` gives, where kernels run nothing but known operators."""
    made = prepared(graph, shapes, options, noted=False, quiet=quiet)
    if any(node.meaning is not None and not is_control(node) for node in made.graph.nodes):
        return None
    return Parts(made.graph, made.tail)
