"""Build a program from the definition of a network: specialise the graph, plan layouts, record kernel calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from baselib.data_classes import dataclass
from baselib.gc_pause import gc_paused
from baselib.locks import lazy
from cpuconv.conv.choice.target import Target
from cpuconv.errors import CpuconvError
from cpuconv.graph.ir import Graph
from cpuconv.memory.arenas import Arenas
from cpuconv.memory.mapped_files import files_of, owned_copy, release_files
from cpuconv.network.body_programs import Bodies
from cpuconv.network.definition import Definition
from cpuconv.network.dynamic_suffix import DynamicSuffix, Network
from cpuconv.network.reports.explain import Explanation
from cpuconv.network.running.building import Builder, build
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.saved.program import Shapes
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.selection.existing import by_kernels_at_hand
from cpuconv.network.selection.layout import NetworkPlan, lay_out
from cpuconv.network.selection.layout_files import is_stored, load_or_plan_layout
from cpuconv.network.selection.winners import winner
from cpuconv.network.sizes.cutting import Parts, stages
from cpuconv.network.templating.classes import (
    WORTH_SPLITTING,
    Class,
    ProgramTemplates,
    class_of,
    finer,
    loss,
    may_lose,
    representative,
)
from cpuconv.network.templating.representatives import nearest_fitting
from cpuconv.network.templating.sized_suffix import SizedSuffix
from cpuconv.network.thread_count import fastest
from cpuconv.runtime.code.at_hand import preferred
from cpuconv.runtime.code.cache import recording_names
from cpuconv.runtime.code.parallel_compile import Wanted
from cpuconv.runtime.float_environment import default_environment


class Key(NamedTuple):
    """Key of a program in a network: input shapes, and the elements of the inputs that decide sizes."""

    shapes: Shapes
    elements: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class ShapeProgram:
    """An executable program for inputs of given sizes.

    Attributes
    ----------
    key : Key
        Shapes and elements that it was built for.
    shape_arrays : mapping of str to numpy.ndarray
        Arrays of the inputs whose elements decide sizes; they are constants of the program.
    executable : Executable
    suffix : DynamicSuffix or None
        The dynamic suffix, which runs after the executable.
    told : callable
        Returns `decisions`.
    explanation : Explanation or None
        None: made at first use.
    kernels : frozenset of str
        Names of the kernels that it was built with.
    """

    key: Key
    shape_arrays: Mapping[str, np.ndarray]
    executable: Executable
    suffix: DynamicSuffix | None
    told: Callable[[], Decisions]
    explanation: Explanation | None = None
    kernels: frozenset[str] = frozenset()

    @lazy
    def decisions(self) -> Decisions:
        """The selected offer and algorithm of each node."""
        return self.told()

    @property
    def nbytes(self) -> int:
        """Memory that is freed when the program is dropped, in bytes."""
        return self.executable.nbytes + (0 if self.suffix is None else self.suffix.nbytes)


class ProgramBuilder:
    """Build the programs of a network, one at a time; later programs of a class of sizes reuse its layouts.

    Attributes
    ----------
    definition : Definition
    target : Target
    packed : Packed
        Packed weights, shared by the programs.
    arenas : Arenas
        Memory of runs, shared by the programs.
    bodies : Bodies
        Bodies of control-flow nodes, shared by the programs.
    auto : bool
        Whether each class of sizes uses the fastest number of threads, at most the target's.
    """

    def __init__(
        self,
        definition: Definition,
        target: Target,
        packed: Packed,
        part: Callable[[Graph], Network],
        bodies: Bodies,
        *,
        auto: bool,
    ) -> None:
        """Store the parts; no program is built yet.

        Parameters
        ----------
        definition : Definition
        target : Target
        packed : Packed
        part : callable
            Compiles a part of the network, whose sizes are known only at run time, as a network of its own.
        bodies : Bodies
        auto : bool
        """
        target = target if definition.is_fixed else target.closed()
        self.definition, self.target, self.packed = definition, target, packed
        self.arenas = Arenas(target.idle_bytes)
        self.auto, self._part, self.bodies = auto, part, bodies
        self._decisions: dict[tuple[Class, int], Decisions] = {}  # by class of sizes and number of threads
        self._split: dict[Class, bool] = {}  # by half class: whether it has layouts of its own
        self._may_lose: dict[Class, bool] = {}
        self._examples: dict[Class, Shapes] = {}  # the most recently requested sizes of each class
        self._representatives: dict[Class, Shapes] = {}
        self._plans: dict[Class, NetworkPlan] = {}  # layout plans of representatives, until they become templates
        suffixed = partial(_suffixed, (*definition.outputs,), part, bodies)
        self._threads: dict[Class, int] = {}  # fastest number of threads per class, if `auto`
        self._templates = ProgramTemplates(packed, self.arenas, suffixed)

    @property
    def choices(self) -> int:
        """Number of classes of sizes for which layouts were selected."""
        return len(self._decisions)

    @property
    def shared_bytes(self) -> int:
        """Size of the networks in bodies and suffixes of programs, in bytes."""
        return self.bodies.nbytes + self._templates.nbytes

    @default_environment()
    def build(self, key: Key, shape_arrays: Mapping[str, np.ndarray]) -> ShapeProgram:
        """Build the program for inputs of these shapes and elements."""
        with gc_paused(), preferred(not self.definition.is_fixed), recording_names() as kernels:
            made = self._built(key, shape_arrays)
        return replace(made, kernels=frozenset(kernels))

    def _built(self, key: Key, shape_arrays: Mapping[str, np.ndarray]) -> ShapeProgram:
        definition = self.definition
        whole = definition.graph_for(key.shapes)  # raises for shapes that do not fit the inputs
        follows = not (definition.is_fixed or shape_arrays)
        if follows:
            found = self._templates.find(self._class(key), definition.templates.numbers(key.shapes))
            if found is not None:
                return ShapeProgram(key, {}, *found)
        target = self._target_of(key, shape_arrays)
        made = self._by_representative(key, target) if follows else None
        if made is not None:
            release_files(files_of(whole.constants.values()))
            return made
        order, files = whole.outputs, files_of(whole.constants.values())
        del whole
        shape_arrays = {name: array.copy() for name, array in shape_arrays.items()}
        (graph, notes, late), decisions = definition.prepared(key.shapes, shape_arrays, noted=definition.is_fixed)
        follows &= decisions is None
        graph = self.bodies.bound(graph)
        release_files(files)
        with nullcontext() if definition.saved is None else definition.saved.built():
            if self.auto and definition.is_fixed:
                network_plan, executable = fastest(
                    lambda target: self._plan_layout(graph, key, decisions, target),
                    self.target,
                    self.packed,
                    self.arenas,
                )
            else:
                network_plan = self._plan_layout(graph, key, decisions, target)
                del graph  # so that folded weights are freed as they are packed
                follows = follows and self._keeps_rounding(network_plan, key)
                made = self._by_template(key, network_plan) if follows else None
                if made is not None:
                    release_files(files)
                    return made
                executable = build(network_plan, target, self.packed, self.arenas)
        suffix = None if late is None else DynamicSuffix(stages(self.bodies.bound(_owned(late))), order, self._part)
        release_files(files)
        made = ShapeProgram(key, shape_arrays, executable, suffix, network_plan.decisions_later())
        if not definition.is_fixed:
            return made
        definition.release_graph()
        return replace(made, explanation=Explanation.of(definition.name, network_plan, executable, notes))

    def _target_of(self, key: Key, shape_arrays: Mapping[str, np.ndarray]) -> Target:
        """The target of a class of sizes, with the fastest number of threads if `auto`.

        The number is determined for the representative of the class. If the network cannot have these sizes, the first
        requested sizes of the class decide.
        """
        if not self.auto or self.definition.is_fixed:
            return self.target
        of = class_of(key.shapes)
        if of not in self._threads:
            graph = None if shape_arrays else self._like(of)
            if graph is None:
                graph = self.bodies.bound(self.definition.prepared(key.shapes, shape_arrays, noted=False)[0].graph)
            _, made = fastest(partial(load_or_plan_layout, graph), self.target, self.packed, self.arenas)
            self._threads[of] = made.target.threads
        return replace(self.target, threads=self._threads[of])

    def _keeps_rounding(self, plan: NetworkPlan, key: Key) -> bool:
        """Whether all algorithms round as those of the class; otherwise they apply to this size only."""
        known = self._decisions.get((self._class(key), plan.target.threads))
        return known is None or known.rounds_as(plan.decisions())

    def _class(self, key: Key) -> Class:
        """The class of the sizes; half a class where the class's choices lose much time by the cost model."""
        of, half = class_of(key.shapes), finer(key.shapes, [*self.definition.inputs.values()])
        for each in (of, half):
            self._examples[each] = key.shapes
        if half == of or key.elements or self.auto or self._saved_decisions(key.shapes) is not None:
            return of
        if half not in self._split:
            self._split[half] = self._is_split(of, half)
        return half if self._split[half] else of

    def _is_split(self, of: Class, half: Class) -> bool:
        """Whether half a class gets layouts of its own."""
        decisions = self._represented(of, self.target)
        graph = self._like(half) if decisions is not None and self._may_lose[of] else None
        return graph is not None and loss(lay_out(graph, self.target, decisions)) > WORTH_SPLITTING

    def _represented(self, of: Class, target: Target) -> Decisions | None:
        """Decisions for the representative of a class; None if there is none, or timings of whole networks decide."""
        at = of, target.threads
        if at not in self._decisions:
            graph = self._like(of)
            if graph is None or winner(graph, target) is not None:
                return None
            plan = load_or_plan_layout(graph, target)
            self._plans[of], self._decisions[at], self._may_lose[of] = plan, plan.decisions(), may_lose(plan)
        return self._decisions[at] if of in self._may_lose else None

    def _by_representative(self, key: Key, target: Target) -> ShapeProgram | None:
        """Build the program by a template for the representative of a class of sizes, the first time.

        None if there is no such plan, or if the template does not apply to these sizes.
        """
        if self._saved_decisions(key.shapes) is not None:
            return None
        of = self._class(key)
        self._represented(of, target)
        plan = self._plans.pop(of, None)
        return None if plan is None else self._by_template(key, by_kernels_at_hand(plan), self._representative(of))

    def _by_template(self, key: Key, plan: NetworkPlan, shapes: Shapes | None = None) -> ShapeProgram | None:
        """Build the program by a new template of a plan for these sizes or for `shapes`; None if that is impossible."""
        templates = self.definition.templates
        numbers, given = templates.numbers(key.shapes), templates.followed(shapes or key.shapes)
        if given is not None:
            (head, suffix), trace = given
            given = Parts(self.bodies.bound(head), suffix), trace
        found = self._templates.add(self._class(key), numbers, plan, given)
        return None if found is None else ShapeProgram(key, {}, *found)

    def _plan_layout(self, graph: Graph, key: Key, decisions: Decisions | None, target: Target) -> NetworkPlan:
        """Plan the layouts of a graph: by saved decisions, by the fastest timed plan, or by its class of sizes."""
        if decisions is not None:
            return lay_out(graph, target, decisions)
        if self.definition.is_fixed:
            return load_or_plan_layout(graph, target)
        known = None if winner(graph, target) is not None else self._class_decisions(graph, key, target)
        plan = load_or_plan_layout(graph, target) if known is None else load_or_plan_layout(graph, target, known)
        return by_kernels_at_hand(plan)

    def _class_decisions(self, graph: Graph, key: Key, target: Target) -> Decisions | None:
        """Decisions for a class of sizes, from its representative, so that they do not depend on what ran before.

        If the network cannot have these sizes, a size of the class decides. None if timings of whole networks decide.
        """
        of = self._class(key)
        known = self._decisions.get((of, target.threads)) or self._saved_decisions(key.shapes)
        if known is not None:
            return known
        plan = load_or_plan_layout(graph if key.elements else self._like(of) or graph, target)
        if plan.decided_by == "raced":
            return None
        return self._decisions.setdefault((of, target.threads), plan.decisions())

    def has_stored_layout(self, shapes: Shapes) -> bool:
        """Whether an earlier process stored layouts for the class of these shapes, and the network can have them."""
        of = class_of(shapes)
        self._examples[of] = shapes
        graph = self._like(of)
        return graph is not None and is_stored(graph, self.target)

    def _like(self, of: Class) -> Graph | None:
        """The graph for the representative of a class; None if the network cannot have its sizes."""
        try:
            ready = self.definition.prepared(self._representative(of), {}, noted=False)[0]
        except CpuconvError:
            return None
        return self.bodies.bound(ready.graph)

    def _representative(self, of: Class) -> Shapes:
        """The representative sizes of a class, adjusted to sizes that the network can have."""
        made = self._representatives.get(of)
        if made is None:
            inputs = [*self.definition.inputs.values()]
            usual, largest = representative(of, inputs), representative(of, inputs, largest=True)
            if not self.fits(usual) and self.fits(largest):
                usual = largest
            made = nearest_fitting(usual, self._examples.get(of, usual), self.fits)
            if self.fits(made):
                self._representatives[of] = made
        return made

    def fits(self, shapes: Shapes) -> bool:
        """Whether the network can have these sizes."""
        try:
            self.definition.prepared(shapes, {}, noted=False)
        except CpuconvError:
            return False
        return True

    def _saved_decisions(self, shapes: Shapes) -> Decisions | None:
        """Decisions that were saved for a size of the same class, if saved decisions are used."""
        saved = self.definition.saved
        if saved is None or not self.definition.follows:
            return None
        like = next((each for each in saved.shapes if class_of(each) == class_of(shapes)), None)
        return None if like is None else saved.decisions(like)

    def detailed(self, made: ShapeProgram) -> ShapeProgram:
        """The program with details of each node, for timing nodes one by one.

        A program that a template evaluated is lowered again.
        """
        if made.executable.operations:
            return made
        graph, *_ = self.definition.prepared(made.key.shapes, {}, noted=False)[0]
        plan = lay_out(graph, made.executable.target, made.decisions)
        return replace(made, executable=build(plan, made.executable.target, self.packed, self.arenas))

    @default_environment()
    def kernels(self, shapes: Shapes) -> list[Wanted]:
        """The kernels that a program for inputs of these shapes would call; the program itself is dropped."""
        graph = self.definition.prepared(shapes, {}, noted=False)[0].graph
        network_plan = lay_out(self.bodies.bound(graph), self.target)
        operations = Builder(network_plan, self.target, Packed()).operations
        return [kernel for operation in operations for step in operation.steps for kernel in step.kernels()]

    def explained(self, made: ShapeProgram) -> Explanation:
        """The explanation of a program, without its dynamic suffix.

        It is made here if it does not exist, so that the first run of a new size does not wait for it.
        """
        if made.explanation is not None:
            return made.explanation
        ready, decisions = self.definition.prepared(made.key.shapes, made.shape_arrays, noted=True)
        network_plan = self._plan_layout(ready.graph, made.key, decisions, made.executable.target)
        return Explanation.of(
            self.definition.name, network_plan, made.executable, [*self.definition.notes, *ready.notes]
        )


def _suffixed(outputs: tuple[str, ...], part: Callable[[Graph], Network], bodies: Bodies, suffix: Graph) -> SizedSuffix:
    """Make the suffix of a network whose nodes have symbolic sizes."""
    return SizedSuffix(outputs, part, bodies.bound(suffix))


def _owned(graph: Graph) -> Graph:
    """Copy a graph's constants out of the model's memory-mapped file."""
    return replace(graph, constants={name: owned_copy(array) for name, array in graph.constants.items()})
