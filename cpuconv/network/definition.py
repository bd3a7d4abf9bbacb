"""The definition of a network, before sizes are known: the compiled or loaded graph from which programs are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cpuconv.errors import ArgumentError, SourceError, must
from cpuconv.graph.control import is_control
from cpuconv.graph.ir import Graph, Value
from cpuconv.memory.mapped_files import check_unchanged
from cpuconv.network.notes import Note, note
from cpuconv.network.ports import sizes
from cpuconv.network.saved.program import Settings, Shapes
from cpuconv.network.saved.reading import Saved
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.sizes.conditions import Conditions
from cpuconv.network.sizes.cutting import Parts
from cpuconv.network.sizes.graph_templates import GraphTemplates, lasting
from cpuconv.network.sizes.prepared import Prepared, Rewriting, prepared
from cpuconv.network.sizes.shape_inputs import shape_inputs, with_constants
from cpuconv.network.sizes.specialise import bound_inputs, specialise


class Definition:
    """A network before sizes are known.

    Attributes
    ----------
    name : str
    inputs : mapping of str to Value
        Inputs, with the sizes that are stated.
    outputs : mapping of str to Value
        Outputs, as far as they are known without sizes.
    order : tuple of str
        Names of the outputs as the model lists them; a name may occur twice.
    defaults : mapping of str to Value
        Types and shapes of the constants that may be fed.
    shape_inputs : tuple of str
        Names of the inputs whose elements decide sizes.
    conditions : Conditions or None
        Conditions of If nodes that inputs of one element decide: each combination has a model (`variants`).
    settings : Settings
    saved : Saved or None
        The saved model that the graph belongs to.
    graph : Graph or None
        The graph, with the rewrites that are valid for all sizes; None after it was released.
    notes : list of Note
        Notes on these rewrites.
    part : bool
        Whether it is a part of another network.
    templates : GraphTemplates
        Templates of the graph, rewritten for sizes.
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
        """Store the compiled or loaded graph, and rewrite it as far as possible without sizes.

        Parameters
        ----------
        graph : Graph
        shapes : mapping of str to sequence of int
            Sizes of inputs by name, where the graph leaves them open.
        settings : Settings
        source : callable or None
            Returns the graph again, after it has been released.
        saved : Saved or None
        part : bool
            Whether this is a part of another network, which has already warned about operators without kernels.
        body : bool
            Whether this is the body of a control-flow node. Then elements of inputs decide no sizes, as they differ in
            each run; sizes that depend on them are determined at run time.
        """
        self.name, self.settings, self.saved, self._source = graph.name, settings, saved, source
        self.part = part
        self.inputs, self.shape_inputs = bound_inputs(graph, shapes), () if body else shape_inputs(graph)
        self.order, self.defaults = graph.outputs, graph.defaults
        graph = _once(graph)
        self.outputs = {name: replace(graph.value(name), array=None) for name in graph.outputs}
        self.graph: Graph | None = graph
        self.conditions = None if body else Conditions.of(graph, self.shape_inputs)
        self.notes: list[Note] = []
        self.templates = GraphTemplates(self.inputs)
        if not self.is_fixed and self.conditions is None:
            from cpuconv.graph import passes  # deferred: models saved with fixed sizes need no rewrites

            watch, skip = partial(note, self.notes), settings.rewriting.skip_passes
            self.graph = lasting(passes.apply_without_sizes(graph, skip, watch), graph)

    @property
    def is_fixed(self) -> bool:
        """Whether one program suffices: all sizes are fixed, and inputs decide no branches."""
        return not self.shape_inputs and self.conditions is None and self._has_sizes

    @property
    def _has_sizes(self) -> bool:
        return all(value.concrete for value in self.inputs.values())

    @property
    def follows(self) -> bool:
        """Whether the choices of the saved model are used: it was saved for this CPU, with the same options."""
        return self.saved is not None and self.saved.fits and self.saved.settings == self.settings

    def fixed_shapes(self) -> Shapes:
        """The sizes of the inputs, if the model and the arguments state all of them.

        Raises
        ------
        SourceError
            Some sizes are open, or elements of inputs decide sizes or branches.
        """
        deciding = self.conditions.graph.inputs if self.conditions else self.shape_inputs
        if deciding:
            what = "branches" if self.conditions else "sizes"
            raise SourceError(must(deciding[0], f"fed: its elements decide {what}; run the model first", "unknown"))
        for name, value in self.inputs.items():
            if not value.concrete:
                expected = "of fixed sizes: run the model first, or state them in 'input_shapes'"
                raise SourceError(must(name, expected, value))
        return tuple(sizes(value) for value in self.inputs.values())

    def graph_for(self, shapes: Shapes) -> Graph:
        """The graph, if a program for inputs of these shapes can be built.

        Raises
        ------
        ArgumentError
            The shapes do not fit the stated inputs, or each other.
        """
        named = dict(zip(self.inputs, shapes, strict=True))
        if self.graph is None:  # all sizes are fixed, and the program is built
            wrong = next(name for name, shape in named.items() if shape != sizes(self.inputs[name]))
            raise ArgumentError(must(f"feed[{wrong!r}]", f"of shape {sizes(self.inputs[wrong])}", named[wrong]))
        for name, value in self.inputs.items():
            if not value.fits(named[name]):
                raise ArgumentError(must(f"feed[{name!r}]", f"of a shape that fits {value}", named[name]))
        bound_inputs(self.graph, named, "feed")  # equal symbols must have equal sizes
        return self.graph

    def prepared(
        self, shapes: Shapes, shape_arrays: Mapping[str, np.ndarray], *, noted: bool
    ) -> tuple[Prepared, Decisions | None]:
        """The graph for a program, and the saved model's decisions for it, if these are used.

        Parameters
        ----------
        shapes : tuple of tuple of int
            Shapes of all inputs.
        shape_arrays : mapping of str to numpy.ndarray
            Arrays of the inputs whose elements decide sizes.
        noted : bool
            Whether to record notes on the rewrites.
        """
        if self.saved is not None:
            program = None if shape_arrays else self.saved.program(shapes)
            if program is not None:
                return program.prepared, program.decisions if self.follows else None
        graph = self.whole()
        named = {name: shape for name, shape in zip(self.inputs, shapes, strict=True) if name not in shape_arrays}
        options = self.settings.rewriting
        if not (noted or shape_arrays or self.is_fixed):
            ready = self.templates.graph(shapes, graph, partial(_ready, graph, options, self.part))
            if ready is not None:
                return Prepared(ready.head, [], ready.suffix), None
        return prepared(with_constants(graph, shape_arrays), named, options, noted=noted, quiet=self.part), None

    def whole(self) -> Graph:
        """The graph with the rewrites that are valid for all sizes, or as it was read if it was released.

        Raises
        ------
        SourceError
            It is no longer available.
        """
        if self.saved is not None:
            self.saved.check_graph()
        graph = self.original() if self.graph is None else self.graph
        check_unchanged(graph.constants.values())
        return graph

    def outputs_of_branches(self) -> dict[str, Value]:
        """The outputs as far as the sizes of the inputs determine them, whatever branches are taken.

        Raises
        ------
        SourceError
            Nodes do not fit together, or an operator is rejected.
        """
        if not self._has_sizes:
            return self.outputs
        options = self.settings.rewriting
        made = specialise(self.whole(), {}, strict=options.strict, quiet=True)
        found = {name: made.value(name) for name in self.outputs}
        return {
            name: replace(found[name] if found[name].concrete else stated, array=None)
            for name, stated in self.outputs.items()
        }

    def original(self) -> Graph:
        """The graph as it was read, without rewrites.

        Raises
        ------
        SourceError
            It is no longer available.
        """
        if self.saved is not None:
            self.saved.check_graph()
        if self._source is None:
            raise SourceError(f"{self.name} cannot be saved: it was not made by cpuconv.compile.")
        return _once(self._source())

    def release_graph(self) -> None:
        """Release the graph after all programs are built, so that raw weights are not stored next to packed ones."""
        self.graph = None


def _once(graph: Graph) -> Graph:
    """The graph with each of its outputs listed once."""
    outputs = tuple(dict.fromkeys(graph.outputs))
    return graph if outputs == graph.outputs else replace(graph, outputs=outputs)


def _ready(graph: Graph, options: Rewriting, quiet: bool, shapes: Mapping[str, Sequence[int]]) -> Parts | None:
    """The result of `prepared`, or None if some operator runs through ONNX's evaluator."""
    made = prepared(graph, shapes, options, noted=False, quiet=quiet)
    if any(node.semantics is not None and not is_control(node) for node in made.graph.nodes):
        return None
    return Parts(made.graph, made.suffix)
