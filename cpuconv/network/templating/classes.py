"""The templates of a network's programs: for each class of sizes, kernel calls as functions of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cpuconv.errors import CpuconvError
from cpuconv.following.sizes import Trace, following
from cpuconv.graph.ir import Graph, Value
from cpuconv.memory.arenas import Arenas
from cpuconv.network.dynamic_suffix import Tail
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.packed import Packed
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.selection.layout import NetworkPlan
from cpuconv.network.sizes.cutting import Parts
from cpuconv.network.templating.followed import followed
from cpuconv.network.templating.sized_suffix import SizedSuffix
from cpuconv.network.templating.template import ProgramTemplate

_USUAL = (1, 3, 14, 56, 224, 640)  # sizes of images and of what they become, of classes 0, 1, …
MAX_TEMPLATES = 6  # of a class: sizes of which no more are served are lowered one by one
Class = tuple[tuple[int, ...], ...]
Told = Callable[[], Decisions]
Suffixed = Callable[[Graph], SizedSuffix]
Found = tuple[Executable, Tail | None, Told]


def class_of(shapes: Sequence[Sequence[int]]) -> Class:
    """The class of some sizes: by each axis, of which powers of 4 they are between; of 16 for batches, whose number
    hardly matters to what is best."""
    return tuple(
        tuple(_power(size, 4 if _is_batched(shape, axis) else 2) for axis, size in enumerate(shape)) for shape in shapes
    )


def _is_batched(shape: Sequence[int], axis: int) -> bool:
    """Whether an axis of an input counts images, by all that is known."""
    return axis == 0 and len(shape) >= 3


def _power(size: int, bits: int) -> int:
    """The least power of 2 ** `bits` that is not less than a size."""
    return -(-max(0, size - 1).bit_length() // bits)


def representative(of: Class, inputs: Sequence[Value]) -> tuple[tuple[int, ...], ...]:
    """The sizes for which a class's layouts and algorithms are chosen: those that people use most, which most is known
    of; of the inputs' axes, those that are stated are what they are."""
    return tuple(
        tuple(_stated(value, axis) or _usual(each, _is_batched(axes, axis)) for axis, each in enumerate(axes))
        for value, axes in zip(inputs, of, strict=True)
    )


def _usual(power: int, batched: bool) -> int:
    if batched:
        return 16**power // 2 or 1
    return _USUAL[power] if power < len(_USUAL) else 7 * 4**power // 8


def _stated(value: Value, axis: int) -> int:
    """The size that an input states of an axis; 0: none."""
    size = None if value.shape is None else value.shape[axis]
    return size if isinstance(size, int) else 0


class ProgramTemplates:
    """Makes programs of templates; for one thread at a time.

    Parameters
    ----------
    packed : Packed
    arenas : Arenas
    suffixed : callable
        Makes the suffix of nodes whose sizes are found in the run.
    """

    def __init__(self, packed: Packed, arenas: Arenas, suffixed: Suffixed) -> None:
        """Hold none yet."""
        self._packed, self._arenas, self._suffixed = packed, arenas, suffixed
        self._made: dict[Class, list[tuple[ProgramTemplate, Told]]] = {}
        self._able = True

    def __len__(self) -> int:
        return sum(map(len, self._made.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of the networks behind programs, which all sizes of a template share."""
        return sum(template.nbytes for made in [*self._made.values()] for template, _ in [*made])

    def find(self, of: Class, numbers: Sequence[int]) -> Found | None:
        """The program for sizes of a class, by a template that is there; None where none serves them."""
        made = self._made.get(of, [])
        for at, (template, told) in enumerate(made):
            found = template.program(numbers)
            if found is not None:
                if at:
                    made.insert(0, made.pop(at))
                return *found, told
        return None

    def add(
        self, of: Class, numbers: Sequence[int], plan: NetworkPlan, given: tuple[Parts, Trace] | None
    ) -> Found | None:
        """The program for sizes of a class, by a new template; None where none can be made.

        Parameters
        ----------
        of : Class
        numbers : sequence of int
            The sizes that are open.
        plan : NetworkPlan
            For these sizes, or those that represent the class.
        given : (Parts, Trace) or None
            The graph that was laid out, with sizes that are followed.
        """
        made = self._made.setdefault(of, [])
        if not self._able or given is None or len(made) >= MAX_TEMPLATES:
            return None
        (graph, tail), trace = given
        try:
            with following():
                followed_plan = followed(plan, graph, trace)
                suffix = None if tail is None else self._suffixed(tail)
            template = ProgramTemplate(followed_plan, trace, plan.target, self._packed, self._arenas, suffix)
        except (CpuconvError, TypeError, ValueError, LookupError, ArithmeticError):  # of code that takes no size
            self._able = False
            return None
        told = plan.told()
        made.insert(0, (template, told))
        found = template.program(numbers)
        return None if found is None else (*found, told)
