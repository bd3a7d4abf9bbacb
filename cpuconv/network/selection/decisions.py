"""Decisions of a network's layout plan as plain values: stored, and reused when the network is planned again.

Nodes are identified by operator and first output, which are equal for all sizes of a network. Forms of operands fit any
sizes, and any target with as many lanes. An algorithm fits the problem for which it was selected, with equal limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.conv.choice.target import Target
from cpuconv.conv.recipe import Candidate
from cpuconv.errors import SourceError, must
from cpuconv.graph.ir import Node
from cpuconv.graph.lowering import Offer


@dataclass(frozen=True)
class Decision:
    """The recorded way to compute one node.

    Attributes
    ----------
    inputs, outputs : tuple of str
        Forms of the operands, as in `Offer`; empty if the reference computes the node.
    view : bool
        Whether the node is a view, so that nothing runs.
    detail : mapping
        The serialised detail of the offer (`recorded`); empty if there is none.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    view: bool = False
    detail: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, offer: Offer | None) -> Decision:
        """Serialise an offer."""
        if offer is None:
            return cls()
        recorded = getattr(offer.detail, "recorded", None)
        return cls(offer.inputs, offer.outputs, offer.view, recorded and recorded())

    def fits(self, offer: Offer | None) -> bool:
        """Whether an offer has the same forms; details are not compared."""
        forms = ((), (), False) if offer is None else (offer.inputs, offer.outputs, offer.view)
        return forms == (self.inputs, self.outputs, self.view)


@dataclass(frozen=True)
class Decisions:
    """The decisions of a layout plan for all nodes.

    Attributes
    ----------
    isa : str
    lanes : int
        Lanes of the target.
    limits : mapping
        The limits of the algorithms: the fields of `Limits`.
    nodes : mapping of str to Decision
        Decisions by `name_of`.
    """

    isa: str
    lanes: int
    limits: Mapping[str, Any]
    nodes: Mapping[str, Decision]

    @classmethod
    def of(cls, target: Target, nodes: Iterable[tuple[Node, Offer | None]]) -> Decisions:
        """Serialise the offers of nodes; algorithms that are not selected yet are selected now."""
        taken = {name_of(node): Decision.of(offer) for node, offer in nodes}
        return cls(target.isa.name, target.isa.lanes, asdict(target.limits), taken)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decisions:
        """Deserialise the result of `to_dict`, also from JSON.

        Raises
        ------
        SourceError
            The data has another form.
        """
        try:
            nodes = {
                str(name): Decision(
                    tuple(map(str, inputs)), tuple(map(str, outputs)), bool(view), detail and {**detail}
                )
                for name, (inputs, outputs, view, detail) in data["nodes"].items()
            }
            return cls(str(data["isa"]), int(data["lanes"]), {**data["limits"]}, nodes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(must("data", "a result of Decisions.to_dict", repr(error))) from error

    def to_dict(self) -> dict[str, Any]:
        """Serialise to dicts, lists, strings and numbers, which JSON supports."""
        nodes = {
            name: [[*each.inputs], [*each.outputs], each.view, None if each.detail is None else {**each.detail}]
            for name, each in self.nodes.items()
        }
        return {"isa": self.isa, "lanes": self.lanes, "limits": {**self.limits}, "nodes": nodes}

    def forms_fit(self, target: Target) -> bool:
        """Whether forms of operands are valid for a target."""
        return self.lanes == target.isa.lanes

    def rounds_as(self, other: Decisions) -> bool:
        """Whether the algorithms in another size's decisions give bit-identical results."""
        return all(_rounding(each) == _rounding(other.nodes.get(name, each)) for name, each in self.nodes.items())

    def algorithms_fit(self, target: Target) -> bool:
        """Whether algorithms for equal problems are valid for a target."""
        return self.forms_fit(target) and self.isa == target.isa.name and dict(self.limits) == asdict(target.limits)


def _rounding(decision: Decision) -> str:
    """The rounding of a convolution's candidate; empty for other nodes."""
    name = str((decision.detail or {}).get("candidate", ""))
    return Candidate.parse(name).rounding if name else ""


def name_of(node: Node) -> str:
    """The identity of a node: its operator and first output."""
    return f"{node.op} {next(filter(None, node.outputs), '')}"
