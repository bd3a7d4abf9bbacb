"""What the layout of a network chose, as plain values: kept, and followed when the network is laid out again.

Nodes go by operator and first output, names that are the same for all sizes of a network. Forms (how operands lie) fit
any target of as many lanes and any sizes; an algorithm fits the problem that it was chosen for, and the same limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.conv.choice.target import Target
from cpuconv.conv.recipe import Candidate
from cpuconv.errors import SourceError, must
from cpuconv.graph.ir import Node
from cpuconv.graph.lowering import Offer


@dataclass(frozen=True)
class Decision:
    """How one node is computed.

    Attributes
    ----------
    inputs, outputs : tuple of str
        How operands lie, as in `Offer`; none where the reference computes the node.
    view : bool
        Whether nothing runs.
    detail : mapping
        What the offer's detail says of itself (`recorded`); empty where there is nothing more to say.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    view: bool = False
    detail: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, offer: Offer | None) -> Decision:
        """An offer as it is recorded."""
        if offer is None:
            return cls()
        recorded = getattr(offer.detail, "recorded", None)
        return cls(offer.inputs, offer.outputs, offer.view, recorded and recorded())

    def fits(self, offer: Offer | None) -> bool:
        """Whether an offer computes the node in this way, details aside."""
        forms = ((), (), False) if offer is None else (offer.inputs, offer.outputs, offer.view)
        return forms == (self.inputs, self.outputs, self.view)


@dataclass(frozen=True)
class Decisions:
    """What a layout chose for every node.

    Attributes
    ----------
    isa : str
    lanes : int
        Of the target.
    limits : mapping
        What algorithms kept to: the fields of `Limits`.
    nodes : mapping of str to Decision
        By `name_of`.
    """

    isa: str
    lanes: int
    limits: Mapping[str, Any]
    nodes: Mapping[str, Decision]

    @classmethod
    def of(cls, target: Target, nodes: Iterable[tuple[Node, Offer | None]]) -> Decisions:
        """The offers of some nodes; algorithms that are not chosen yet are chosen now."""
        taken = {name_of(node): Decision.of(offer) for node, offer in nodes}
        return cls(target.isa.name, target.isa.lanes, asdict(target.limits), taken)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decisions:
        """What `to_dict` gave, also by way of JSON.

        Raises
        ------
        SourceError
            It is something else.
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
            raise SourceError(must("data", "what Decisions.to_dict gives", repr(error))) from error

    def to_dict(self) -> dict[str, Any]:
        """As plain dicts, lists, texts and numbers, which JSON keeps."""
        nodes = {
            name: [[*each.inputs], [*each.outputs], each.view, None if each.detail is None else {**each.detail}]
            for name, each in self.nodes.items()
        }
        return {"isa": self.isa, "lanes": self.lanes, "limits": {**self.limits}, "nodes": nodes}

    def forms_fit(self, target: Target) -> bool:
        """Whether operands may lie for that target as they did."""
        return self.lanes == target.isa.lanes

    def rounds_as(self, other: Decisions) -> bool:
        """Whether the algorithms of another size's decisions give equal bits."""
        return all(_rounding(each) == _rounding(other.nodes.get(name, each)) for name, each in self.nodes.items())

    def algorithms_fit(self, target: Target) -> bool:
        """Whether algorithms for equal problems may be taken over for that target."""
        return self.forms_fit(target) and self.isa == target.isa.name and dict(self.limits) == asdict(target.limits)


def _rounding(decision: Decision) -> str:
    """What the results of a convolution depend on beside its operands; empty of other nodes."""
    name = str((decision.detail or {}).get("candidate", ""))
    return Candidate.parse(name).rounding if name else ""


def name_of(node: Node) -> str:
    """What a node goes by: its operator and first output."""
    return f"{node.op} {next(filter(None, node.outputs), '')}"
