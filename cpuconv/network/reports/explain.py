"""What became of a network: rewrites, layouts and algorithms, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.data_classes import dataclass
from autotune.screen import Column, Report, Table
from cpuconv.conv.choice.model import Choice
from cpuconv.graph.control import is_control
from cpuconv.graph.control import summary as summary_of
from cpuconv.graph.ir import Node
from cpuconv.network.notes import Note
from cpuconv.network.reports.rewrites import summary
from cpuconv.network.running.executable import Executable
from cpuconv.network.selection.decisions import name_of
from cpuconv.network.selection.element_types import CONVERTS, types_of
from cpuconv.network.selection.layout import LEAST, NetworkPlan, NodePlan
from cpuconv.network.selection.planning import CHEAPEST, seconds

COPY = "Copy"
REFERENCE, EVALUATOR = "reference", "evaluator"
COLUMNS = (
    Column("operator", least=10, keeps_end=True),
    Column("kind", least=8),
    Column("shape", rank=3),
    Column("types", rank=4),
    Column("layouts", rank=5),
    Column("algorithm", rank=1, least=12),
    Column("decided by", rank=2, least=10),
    Column("awaited", rank=6),
)
_WIDTH = 36  # of a name in a table; the end of a path says more than its beginning


@dataclass(frozen=True)
class OperatorRow:
    """One operator.

    Attributes
    ----------
    name, op : str
        What the model calls the node, and its operator.
    types : str
        Element types, as `element_types.types_of` writes them; "" where they are not known.
    layouts : str
        How its inputs and outputs lie.
    algorithm : str
        Of a convolution or product; "view" where nothing runs, "reference" where NumPy computes it, "evaluator" where
        ONNX's reference evaluator does.
    decided_by : str
        What chose the algorithm; "" where there is no choice.
    shape : tuple of int
        Of the first output; () where it depends on elements.
    awaited : str
        A faster algorithm whose kernels were not there, and are compiled in the background for later programs; "" if
        there is none.
    """

    name: str
    op: str
    types: str
    layouts: str
    algorithm: str
    decided_by: str
    shape: tuple[int, ...]
    awaited: str = ""


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """Prints itself; `to_dict` gives the same as plain values.

    Attributes
    ----------
    name : str
    operators : list of OperatorRow
    summary : list of (str, str)
        Rewrite, and what became of how many nodes.
    rewrites : list of (str, str)
        The same node by node, with their names.
    made : list of (str, str)
        Of these the ones that made operators of another kind, without the names of the nodes that are gone.
    reorders : int
        Copies that only change how a tensor lies, or its type.
    conversions : int
        Those of them that change the type.
    conversion_seconds : float
        What these take by the models.
    arena_bytes : int
        Of values while the network runs, for each caller.
    unshared_bytes : int
        What they would take if no two shared memory.
    raw_bytes : int
        Of weights and other constants as the rewritten model has them; they are not kept.
    constant_bytes : int
        The same packed.
    workspace_bytes : int
        For each caller.
    plan, plan_decided_by : str
        How layouts were selected, and what chose that: "model", "raced" (whole runs were timed), or "record" with ""
        for the plan: layouts that were chosen before.
    weighed : mapping of str to float
        Seconds of plans by the models; as "least" what no layouts are below. Empty for a record.
    """

    name: str
    operators: list[OperatorRow]
    summary: list[tuple[str, str]]
    rewrites: list[tuple[str, str]]
    made: list[tuple[str, str]]
    reorders: int
    conversions: int
    conversion_seconds: float
    arena_bytes: int
    unshared_bytes: int
    raw_bytes: int
    constant_bytes: int
    workspace_bytes: int
    plan: str
    plan_decided_by: str
    weighed: Mapping[str, float]

    @classmethod
    def of(cls, name: str, network_plan: NetworkPlan, executable: Executable, notes: Sequence[Note]) -> Explanation:
        """Of a network that was laid out and built."""
        rows, conversions = [], []
        built = {name_of(work.node_plan.node): work.node_plan for work in executable.works}
        for node in network_plan.nodes:
            node = built.get(name_of(node.node), node)  # another program may be given other kernels
            shape = network_plan.graph.value(next(filter(None, node.node.outputs))).shape or ()
            sizes = tuple(int(size or 0) for size in shape)
            label = node.node.origin or next(filter(None, node.node.outputs))
            types = types_of(node, network_plan.graph.value)
            row = label, node.node.op, types, forms(node), algorithm(node), decided_by(node), sizes, awaited(node)
            rows.append(OperatorRow(*row))
            if node.node.op == COPY and CONVERTS in types:
                conversions.append(seconds(node.offer))
        memory = executable.memory
        return cls(
            name=name,
            operators=rows,
            summary=summary(notes),
            rewrites=[(note.rewrite, note.text) for note in notes],
            made=[(note.rewrite, _brief(note)) for note in notes if note.gained],
            reorders=sum(row.op == COPY for row in rows),
            conversions=len(conversions),
            conversion_seconds=sum(conversions),
            arena_bytes=memory.arena,
            unshared_bytes=memory.unshared,
            raw_bytes=executable.raw_bytes,
            constant_bytes=executable.constant_bytes,
            workspace_bytes=executable.workspace_bytes,
            plan=network_plan.plan,
            plan_decided_by=network_plan.decided_by,
            weighed=network_plan.weighed,
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def blocks(self) -> Iterator[str | Table]:
        """What it prints."""
        yield self._head()
        shown = len(COLUMNS) if any(row.awaited for row in self.operators) else len(COLUMNS) - 1
        rows = [
            (
                row.name, row.op, "x".join(map(str, row.shape)), row.types, row.layouts, row.algorithm, row.decided_by,
                row.awaited,
            )[:shown]
            for row in self.operators
        ]  # fmt: skip
        yield Table(COLUMNS[:shown], rows)
        if self.summary:
            yield Table((Column("rewrite", least=12), Column("what it did", least=30)), self.summary)
        if self.made:
            yield Table((Column("rewrite", least=12), Column("what became another operator", least=30)), self.made)

    def _head(self) -> str:
        """How many operators run, how layouts were chosen, and memory."""
        lines = [
            f"{self.name}: {sum(row.algorithm != 'view' for row in self.operators)} operators run, "
            f"{self.reorders} of them reorders"
            + (
                f", {self.conversions} to another type ({1e3 * self.conversion_seconds:.2f} ms by the models)"
                * bool(self.conversions)
            ),
            self._plans(),
            f"arena {_megabytes(self.arena_bytes)} (unshared {_megabytes(self.unshared_bytes)}), weights and other "
            f"constants {_megabytes(self.constant_bytes)} packed ({_megabytes(self.raw_bytes)} raw), workspace "
            f"{_megabytes(self.workspace_bytes)}",
        ]
        for computed, by in ((REFERENCE, "NumPy reference"), (EVALUATOR, "ONNX's reference evaluator, which is slow")):
            slow = Counter(row.op for row in self.operators if row.algorithm == computed)
            if slow:
                lines.append(f"runs by {by}: {', '.join(f'{count} {op}' for op, count in slow.items())}")
        return "\n".join(lines)

    def _plans(self) -> str:
        """How layouts were chosen, and what the others cost."""
        if not self.plan:
            return "layouts: as recorded before"
        costs = (f"{name} {1e3 * seconds:.2f} ms" for name, seconds in self.weighed.items() if name != LEAST)
        above = 100 * (self.weighed[CHEAPEST] / self.weighed[LEAST] - 1) if self.weighed[LEAST] else 0.0
        bound = (
            "no others are cheaper" if above < 0.01 else f"the cheapest is at most {above:.1f}% above what is possible"
        )
        return f"layouts: {self.plan} (decided by: {self.plan_decided_by}); by the models {', '.join(costs)}; {bound}"


def late_rows(nodes: Iterable[Node], by: str = REFERENCE) -> list[OperatorRow]:
    """Rows of nodes whose sizes are not known before the network runs."""
    return [
        OperatorRow(
            node.origin or next(filter(None, node.outputs)),
            node.op,
            "",
            "dense -> dense",
            reference_of(node, by),
            "",
            (),
        )
        for node in nodes
    ]


def reference_of(node: Node, by: str = REFERENCE) -> str:
    """What computes a node between kernels; of one of control flow the operators of its bodies."""
    return summary_of(node) if is_control(node) else by if node.meaning is None else EVALUATOR


def shortened(name: str) -> str:
    """A name for a table: the end of one that is long."""
    return name if len(name) <= _WIDTH else f"…{name[1 - _WIDTH :]}"


def _brief(note: Note) -> str:
    *_, last = note.new
    old, new = (", ".join(dict.fromkeys(node.op for node in nodes)) for nodes in (note.old, note.new))
    return f"{old} became {new} {shortened(last.name)!r}"


def forms(node_plan: NodePlan) -> str:
    """How the operands of a node lie: ``blocked, dense -> blocked``."""
    if node_plan.offer is None:
        return "dense -> dense"
    inputs = ", ".join(dict.fromkeys(filter(None, node_plan.offer.inputs)))
    return f"{inputs} -> {', '.join(dict.fromkeys(node_plan.offer.outputs))}"


def algorithm(node_plan: NodePlan) -> str:
    """What computes a node, as far as there is a choice."""
    if node_plan.offer is None:
        return reference_of(node_plan.node)
    choice = choice_of(node_plan)
    return "view" if node_plan.offer.view else "" if choice is None else str(choice.candidate)


def decided_by(node_plan: NodePlan) -> str:
    """What chose the algorithm of a node."""
    choice = choice_of(node_plan)
    return "" if choice is None else choice.decided_by


def awaited(node_plan: NodePlan) -> str:
    """The algorithm that is awaited in place of the one that computes a node."""
    choice = choice_of(node_plan)
    return "" if choice is None or choice.awaited is None else str(choice.awaited)


def choice_of(node_plan: NodePlan) -> Choice | None:
    """The choice of a convolution's algorithm, which its offer holds."""
    return getattr(node_plan.offer.detail, "choice", None) if node_plan.offer is not None else None


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
