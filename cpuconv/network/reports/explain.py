"""Explanation of a network: rewrites, layouts, algorithms and memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from baselib.screen import Column, Report, Table
from cpuconv.conv.choice.model import Choice
from cpuconv.graph.control import is_control
from cpuconv.graph.control import summary as summary_of
from cpuconv.graph.ir import Graph, Node
from cpuconv.kernels.binding.tensor_view import stored_as
from cpuconv.network.notes import Note
from cpuconv.network.reports.rewrites import summary
from cpuconv.network.running.executable import Executable
from cpuconv.network.selection.decisions import name_of
from cpuconv.network.selection.element_types import CONVERTS, types_of
from cpuconv.network.selection.layout import LOWER_BOUND, NetworkPlan, NodePlan
from cpuconv.network.selection.planning import CHEAPEST

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
_WIDTH = 36  # maximum characters of a name in a table, which shows the end of a longer one


@dataclass(frozen=True)
class OperatorRow:
    """One operator of an explanation.

    Attributes
    ----------
    name, op : str
        Name of the node in the model, and its operator.
    types : str
        Element types, as formatted by `element_types.types_of`; "" if unknown.
    layouts : str
        Forms of its inputs and outputs.
    algorithm : str
        Algorithm of a convolution or matrix multiplication; "view" if nothing runs, "reference" if NumPy computes it,
        "evaluator" if ONNX's reference evaluator does.
    decided_by : str
        Source of the selection of the algorithm; "" if there is none.
    shape : tuple of int
        Shape of the first output; () if it depends on elements.
    awaited : str
        A faster algorithm whose kernels did not exist, and are compiled in the background for later programs; "" if
        there is none.
    inputs, outputs : tuple of str
        Names of its tensors.
    """

    name: str
    op: str
    types: str
    layouts: str
    algorithm: str
    decided_by: str
    shape: tuple[int, ...]
    awaited: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """An explanation that prints itself; `to_dict` gives the same as plain values.

    Attributes
    ----------
    name : str
    operators : list of OperatorRow
    summary : list of (str, str)
        Rewrites, each with its effect and the number of nodes.
    rewrites : list of (str, str)
        The same node by node, with their names.
    made : list of (str, str)
        Those rewrites that made operators of another kind, without the names of the removed nodes.
    reorders : int
        Number of copies that only change the form or type of a tensor.
    conversions : int
        Number of copies that change the type.
    copied_bytes : int
        Bytes that all copies read and write.
    copy_share : float
        Their share of the modelled time of all operators.
    arena_bytes : int
        Size of intermediate tensors, per caller.
    unshared_bytes : int
        Size of intermediate tensors without shared memory.
    raw_bytes : int
        Size of weights and other constants in the rewritten model, which have been released.
    constant_bytes : int
        Size of the packed constants.
    workspace_bytes : int
        Size of the workspace, per caller.
    plan, plan_decided_by : str
        Method by which layouts were selected, and what chose it: "model" or "raced" (whole runs were timed). For
        layouts that were selected before, the plan is "" and decided by "record".
    weighed : mapping of str to float
        Modelled seconds of plans; "least" is the lower bound for all layouts. Empty for a record.
    """

    name: str
    operators: list[OperatorRow]
    summary: list[tuple[str, str]]
    rewrites: list[tuple[str, str]]
    made: list[tuple[str, str]]
    reorders: int
    conversions: int
    copied_bytes: int
    copy_share: float
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
        """Explain a network that was planned and built."""
        rows = []
        names = {value: output for output, value in network_plan.outputs.items()}
        built = {name_of(operation.node_plan.node): operation.node_plan for operation in executable.operations}
        copies = [node for node in network_plan.nodes if node.node.op == COPY]
        everything = sum(float(node.seconds) for node in network_plan.nodes)
        for node in network_plan.nodes:
            node = built.get(name_of(node.node), node)  # a program may have other kernels than the plan
            shape = network_plan.graph.value(next(filter(None, node.node.outputs))).shape or ()
            sizes = tuple(int(size or 0) for size in shape)
            label = node.node.origin or next(filter(None, node.node.outputs))
            types = types_of(node, network_plan.graph.value)
            row = label, node.node.op, types, forms(node), algorithm(node), decided_by(node), sizes, awaited(node)
            read, written = ([names.get(x, x) for x in side] for side in (node.node.inputs, node.node.outputs))
            rows.append(OperatorRow(*row, tuple(read), tuple(written)))
        memory = executable.memory
        return cls(
            name=name,
            operators=rows,
            summary=summary(notes),
            rewrites=[(note.rewrite, note.text) for note in notes],
            made=[(note.rewrite, _brief(note)) for note in notes if note.gained],
            reorders=sum(row.op == COPY for row in rows),
            conversions=sum(row.op == COPY and CONVERTS in row.types for row in rows),
            copied_bytes=sum(_copied(node, network_plan.graph) for node in copies),
            copy_share=sum(float(node.seconds) for node in copies) / everything if everything else 0.0,
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
        """Convert to plain values."""
        return asdict(self)

    def blocks(self) -> Iterator[str | Table]:
        """The printed text and tables."""
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
        """The number of operators, the selection of layouts, and memory, as text."""
        lines = [
            f"{self.name}: operators that run: {sum(row.algorithm != 'view' for row in self.operators)}, "
            f"of these reorders: {self.reorders}"
            + f", of these to another type: {self.conversions}" * bool(self.conversions)
            + f" ({_megabytes(self.copied_bytes)}, {self.copy_share:.1%} of the modelled time)" * bool(self.reorders),
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
        """The selection of layouts, and the costs of others, as text."""
        if not self.plan:
            return "layouts: as recorded before"
        costs = (f"{name} {1e3 * seconds:.2f} ms" for name, seconds in self.weighed.items() if name != LOWER_BOUND)
        above = 100 * (self.weighed[CHEAPEST] / self.weighed[LOWER_BOUND] - 1) if self.weighed[LOWER_BOUND] else 0.0
        bound = (
            "no others are cheaper" if above < 0.01 else f"the cheapest is at most {above:.1f}% above what is possible"
        )
        return f"layouts: {self.plan} (decided by: {self.plan_decided_by}); by the models {', '.join(costs)}; {bound}"


def _copied(node_plan: NodePlan, graph: Graph) -> int:
    """Bytes that a copy reads and writes, of tensors in their forms."""
    ends = (node_plan.reads(0), node_plan.node.inputs[0]), (node_plan.writes(0), node_plan.node.outputs[0])
    values = [(form, graph.value(name)) for form, name in ends]
    return sum(
        math.prod(int(size or 0) for size in value.shape or ()) * stored_as(form, np.dtype(value.dtype)).itemsize
        for form, value in values
    )


def late_rows(nodes: Iterable[Node], by: str = REFERENCE) -> list[OperatorRow]:
    """Rows of nodes whose sizes are unknown before the network runs."""
    return [
        OperatorRow(
            node.origin or next(filter(None, node.outputs)),
            node.op,
            "",
            "dense -> dense",
            reference_of(node, by),
            "",
            (),
            inputs=node.inputs,
            outputs=node.outputs,
        )
        for node in nodes
    ]


def reference_of(node: Node, by: str = REFERENCE) -> str:
    """Name of what computes a node without kernels; for control flow, the operators of its bodies."""
    return summary_of(node) if is_control(node) else by if node.semantics is None else EVALUATOR


def shortened(name: str) -> str:
    """Shorten a name for a table to its end."""
    return name if len(name) <= _WIDTH else f"…{name[1 - _WIDTH :]}"


def _brief(note: Note) -> str:
    *_, last = note.new
    old, new = (", ".join(dict.fromkeys(node.op for node in nodes)) for nodes in (note.old, note.new))
    return f"{old} became {new} {shortened(last.name)!r}"


def forms(node_plan: NodePlan) -> str:
    """The forms of a node's operands as text: ``blocked, dense -> blocked``."""
    if node_plan.offer is None:
        return "dense -> dense"
    inputs = ", ".join(dict.fromkeys(filter(None, node_plan.offer.inputs)))
    return f"{inputs} -> {', '.join(dict.fromkeys(node_plan.offer.outputs))}"


def algorithm(node_plan: NodePlan) -> str:
    """The algorithm of a node as text, or what computes it instead."""
    if node_plan.offer is None:
        return reference_of(node_plan.node)
    choice = choice_of(node_plan)
    return "view" if node_plan.offer.view else "" if choice is None else str(choice.candidate)


def decided_by(node_plan: NodePlan) -> str:
    """The source of the selection of a node's algorithm."""
    choice = choice_of(node_plan)
    return "" if choice is None else choice.decided_by


def awaited(node_plan: NodePlan) -> str:
    """The faster algorithm of a node whose kernels are being compiled."""
    choice = choice_of(node_plan)
    return "" if choice is None or choice.awaited is None else str(choice.awaited)


def choice_of(node_plan: NodePlan) -> Choice | None:
    """The choice of a convolution's algorithm, from its offer."""
    return getattr(node_plan.offer.detail, "choice", None) if node_plan.offer is not None else None


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
