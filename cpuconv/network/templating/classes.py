"""Templates of a network's programs: per class of sizes, kernel calls as functions of the sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.model import cheapest, modelled_cost
from cpuconv.errors import CpuconvError
from cpuconv.graph.ir import Graph, Value
from cpuconv.memory.arenas import Arenas
from cpuconv.network.dynamic_suffix import DynamicSuffix
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.selection.layout import NetworkPlan
from cpuconv.network.sizes.cutting import Parts
from cpuconv.network.templating.followed import followed
from cpuconv.network.templating.sized_suffix import SizedSuffix
from cpuconv.network.templating.template import ProgramTemplate
from cpuconv.symbolic.classes import AXIS, BATCH, HALF_STEP, representative_size, size_class
from cpuconv.symbolic.sizes import Trace, tracing

_MUCH = 0.2
WORTH_SPLITTING = 1.1  # ratio of modelled times from which on half a class gets its own layouts
MAX_TEMPLATES = 6  # templates per class; sizes that these do not serve are lowered individually
Class = tuple[tuple[int, ...], ...]
Told = Callable[[], Decisions]
Suffixed = Callable[[Graph], SizedSuffix]
Found = tuple[Executable, DynamicSuffix | None, Told]


def class_of(shapes: Sequence[Sequence[int]]) -> Class:
    """The class of sizes: powers of 4 for each axis, of 16 for a batch."""
    return tuple(
        tuple(size_class(size, BATCH if _is_batched(shape, axis) else AXIS) for axis, size in enumerate(shape))
        for shape in shapes
    )


def _is_batched(shape: Sequence[int], axis: int) -> bool:
    """Whether an axis of an input is probably the batch."""
    return axis == 0 and len(shape) >= 3


def finer(shapes: Sequence[Sequence[int]], inputs: Sequence[Value]) -> Class:
    """The class of sizes in which each open axis has half a class: up to a power of 2."""
    return tuple(
        tuple(
            size_class(size, HALF_STEP) if each and not _is_batched(shape, axis) and not _stated(value, axis) else each
            for axis, (size, each) in enumerate(zip(shape, axes, strict=True))
        )
        for value, shape, axes in zip(inputs, shapes, class_of(shapes), strict=True)
    )


def representative(of: Class, inputs: Sequence[Value], largest: bool = False) -> tuple[tuple[int, ...], ...]:
    """The sizes for which a class's layouts and algorithms are selected: common ones, which have been measured most.

    Axes with stated sizes keep them. `largest`: powers of two, for networks that accept only multiples of one.
    """
    return tuple(
        tuple(
            _stated(value, axis) or (2**each if largest else representative_size(each, _is_batched(axes, axis)))
            for axis, each in enumerate(axes)
        )
        for value, axes in zip(inputs, of, strict=True)
    )


def loss(plan: NetworkPlan) -> float:
    """Ratio of the modelled time of a plan's convolutions to that of the best candidates."""
    own = best = 0.0
    for each in plan.nodes:
        detail = None if each.offer is None else each.offer.detail
        if isinstance(detail, LayoutCandidate):
            problem, limits = detail.problem, plan.target.limits
            own += modelled_cost(problem, detail.choice.candidate, limits.closed).estimate
            best += cheapest(problem, limits).cost.estimate
    return own / best if best else 1.0


def may_lose(plan: NetworkPlan) -> bool:
    """Whether transforms take over 20% of a plan's convolution time, as their tiles do not fit planes of all sizes."""
    seconds = {True: 0.0, False: 0.0}
    for each in plan.nodes:
        detail = None if each.offer is None else each.offer.detail
        if isinstance(detail, LayoutCandidate):
            seconds[bool(detail.choice.candidate.solver.rounding)] += detail.seconds
    return seconds[True] > _MUCH * sum(seconds.values())


def _stated(value: Value, axis: int) -> int:
    """The size that an input states for an axis; 0 if it is open."""
    size = None if value.shape is None else value.shape[axis]
    return size if isinstance(size, int) else 0


class ProgramTemplates:
    """Makes templates and their programs; not thread-safe.

    Parameters
    ----------
    packed : Packed
    arenas : Arenas
    suffixed : callable
        Makes the suffix from the nodes whose sizes are known only at run time.
    """

    def __init__(self, packed: Packed, arenas: Arenas, suffixed: Suffixed) -> None:
        """Start without templates."""
        self._packed, self._arenas, self._suffixed = packed, arenas, suffixed
        self._made: dict[Class, list[tuple[ProgramTemplate, Told]]] = {}
        self._able = True

    def __len__(self) -> int:
        return sum(map(len, self._made.values()))

    @property
    def nbytes(self) -> int:
        """Size of the networks in dynamic suffixes, which all sizes of a template share, in bytes."""
        return sum(template.nbytes for made in [*self._made.values()] for template, _ in [*made])

    def find(self, of: Class, numbers: Sequence[int]) -> Found | None:
        """The program for sizes of a class by an existing template; None if none applies."""
        made = self._made.get(of, [])
        for at, (template, decisions) in enumerate(made):
            found = template.program(numbers)
            if found is not None:
                if at:
                    made.insert(0, made.pop(at))
                return *found, decisions
        return None

    def add(
        self, of: Class, numbers: Sequence[int], plan: NetworkPlan, given: tuple[Parts, Trace] | None
    ) -> Found | None:
        """The program for sizes of a class by a new template; None if that is impossible.

        Parameters
        ----------
        of : Class
        numbers : sequence of int
            The open sizes.
        plan : NetworkPlan
            The plan for these sizes, or for the representative of the class.
        given : (Parts, Trace) or None
            The planned graph, with symbolic sizes.
        """
        made = self._made.setdefault(of, [])
        if not self._able or given is None or len(made) >= MAX_TEMPLATES:
            return None
        (graph, suffix), trace = given
        try:
            with tracing():
                followed_plan = followed(plan, graph, trace)
                sized = None if suffix is None else self._suffixed(suffix)
            template = ProgramTemplate(followed_plan, trace, plan.target, self._packed, self._arenas, sized)
        except (CpuconvError, TypeError, ValueError, LookupError, ArithmeticError):  # code without symbolic sizes
            self._able = False
            return None
        decisions = plan.decisions_later()
        made.insert(0, (template, decisions))
        found = template.program(numbers)
        return None if found is None else (*found, decisions)
