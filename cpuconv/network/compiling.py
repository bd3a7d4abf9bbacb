"""Compile a graph to a model: its definition, the builder of its programs, and the program if sizes are fixed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from baselib.locks import Lock
from cpuconv.conv.choice.target import Target
from cpuconv.errors import CpuconvError
from cpuconv.graph.ir import Graph
from cpuconv.graph.ops.drawing import restarted
from cpuconv.isa.table import current
from cpuconv.kernels.convolutions.convolve import ConvolveTile, convolve
from cpuconv.kernels.copies.rows import BLOCKED, RowTile
from cpuconv.network.body_programs import Bodies
from cpuconv.network.definition import Definition
from cpuconv.network.model import Model
from cpuconv.network.ports import sizes
from cpuconv.network.program_builder import Key, ProgramBuilder
from cpuconv.network.program_cache import ProgramCache
from cpuconv.network.running.packed import Packed
from cpuconv.network.saved.program import Settings
from cpuconv.network.saved.reading import Saved
from cpuconv.network.sizes.prepared import Rewriting
from cpuconv.network.variants import BranchModels, Opened
from cpuconv.runtime.code.parallel_compile import Wanted, early_helpers, is_cache_empty
from cpuconv.runtime.float_environment import default_environment
from cpuconv.runtime.launch import LAUNCHER


@default_environment()
def compiled(
    graph: Graph,
    target: Target,
    shapes: Mapping[str, Sequence[int]],
    options: Rewriting | None = None,
    *,
    source: Callable[[], Graph] | None = None,
    saved: Saved | None = None,
    packed: Packed | None = None,
    auto: bool = False,
    early: bool = False,
) -> Model:
    """Make the model of a graph, with its program if all sizes are fixed.

    Parameters
    ----------
    graph : Graph
        The graph that was read; for a saved model, its `graph`.
    target : Target
    shapes : mapping of str to sequence of int
        Sizes of inputs by name, where the graph leaves them open.
    options : Rewriting or None
    source : callable or None
        Returns the graph again, for `save`, after it has been released.
    saved : Saved or None
        The saved model that the graph belongs to.
    packed : Packed or None
        Packed weights to share with other models; None: new ones.
    auto : bool
        Whether each program uses the fastest number of threads, at most the target's.
    early : bool
        Whether to build a program for common sizes if sizes are open, so that the first run waits less.
    """
    graph = restarted(graph)
    if source is None and graph.defaults:
        source = partial(_given, graph)
    definition = Definition(graph, shapes, Settings.of(target, options or Rewriting()), source, saved)
    packed = Packed(None if saved is None else saved.packed) if packed is None else packed
    return _model(definition, target, packed, Lock(brief=False), auto=auto, early=early)


def _model(
    definition: Definition, target: Target, packed: Packed, making: Lock, *, auto: bool, early: bool = False
) -> Model:
    programs = _programs(definition, target, packed, making, auto=auto)
    outputs = definition.outputs
    if definition.is_fixed:
        with early_helpers(_usual):
            known = programs.find(definition.fixed_shapes()).executable.outputs
        outputs = {name: known.get(name, value) for name, value in outputs.items()}
    elif definition.conditions is not None:
        outputs = definition.outputs_of_branches()
    elif early:
        with making:
            _prepare(programs.builder)

    def reopened(names: Collection[str]) -> Opened[Model]:
        """Recompile the original graph with some defaults as inputs; unchanged packed weights are shared."""
        graph = definition.original()
        shapes = {name: sizes(value) for name, value in definition.inputs.items() if value.concrete}
        again = Definition(graph.with_defaults_as_inputs(names), shapes, definition.settings, None, None)
        return Opened(_model(again, target, packed, making, auto=auto), {name: graph.constants[name] for name in names})

    def taken(graph: Graph) -> Model:
        """Compile the graph of some branches; packed weights are shared."""
        shapes = {name: sizes(value) for name, value in definition.inputs.items() if value.concrete}
        made = Definition(graph, shapes, definition.settings, None, None, part=definition.part)
        return _model(made, target, packed, making, auto=auto)

    return Model(definition, programs, outputs, reopened, BranchModels.of(definition, taken))


def _prepare(builder: ProgramBuilder) -> None:
    """Build a program for common sizes, the first time on a machine: its kernels stay in the cache folder.

    Skipped if input elements decide sizes, and if candidates would be timed. Also skipped for a saved model, which has
    its layouts, unless no kernels exist yet.
    """
    definition, no_kernels = builder.definition, is_cache_empty()
    if definition.shape_inputs or builder.target.strategy == "profile":
        return
    if definition.saved is not None and not no_kernels:
        return
    from cpuconv.network.sizes.usual_sizes import compile_with_small_tiles, usual_shapes  # for open sizes only

    for shapes in usual_shapes([*definition.inputs.values()], builder.fits):
        if not no_kernels and builder.has_stored_layout(shapes):
            return
        with contextlib.suppress(CpuconvError), early_helpers(_usual):  # the shapes may exceed the memory
            if no_kernels:
                compile_with_small_tiles(builder.kernels(shapes))
            builder.build(Key(shapes), {})
            return


def _given(graph: Graph) -> Graph:
    return graph


def _programs(definition: Definition, target: Target, packed: Packed, making: Lock, *, auto: bool) -> ProgramCache:
    settings = definition.settings

    def part(graph: Graph) -> Model:
        """A part of the network for sizes that are known only at run time; packed weights are shared."""
        return _model(Definition(graph, {}, settings, None, None, part=True), target, packed, making, auto=False)

    def body(graph: Graph) -> ProgramCache:
        """The programs of a node's body; packed weights are shared."""
        made = Definition(graph, {}, settings, None, None, part=True, body=True)
        return _programs(made, target, packed, making, auto=False)

    return ProgramCache(ProgramBuilder(definition, target, packed, part, Bodies(body), auto=auto), making)


def _usual() -> list[Wanted]:
    """Kernels that nearly every network calls and that take long to compile."""
    lanes = current().lanes
    return [(LAUNCHER, None), (convolve, ConvolveTile(lanes, RowTile(lanes, BLOCKED)))]
