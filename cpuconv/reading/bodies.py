"""If, Loop and Scan as the graph has them: from all opsets to one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph, trimmed

_BATCHED = 8  # the opset whose Scan has a batch and the lengths of its sequences


class Form(NamedTuple):
    """Inputs of a node, those that its bodies capture left out, and its attributes."""

    inputs: list[str]
    attributes: dict[str, Any]


def control_form(
    op: str, opset: int, inputs: Sequence[str], bodies: Mapping[str, Graph], numbers: Mapping[str, Any]
) -> Form:
    """A node of control flow in the form of `cpuconv.graph.control`.

    Parameters
    ----------
    op : str
    opset : int
    inputs : sequence of str
        As the model has them.
    bodies : mapping of str to Graph
    numbers : mapping of str
        The other attributes.

    Raises
    ------
    SourceError
        There are more scan inputs than inputs.
    """
    names = [*inputs]
    if op == "If":
        return Form(names, {**bodies})
    if op == "Loop":
        names = [*trimmed(names)]
        names += [""] * (2 - len(names))
        return Form(names, {**bodies, "carried": len(names) - 2})
    batched = opset == _BATCHED
    scanned = numbers["num_scan_inputs"]
    carried = len(names) - batched - scanned
    if scanned < 1 or carried < 0:
        raise SourceError(f"'num_scan_inputs' must be from 1 to {len(names) - batched}, not {scanned}.")
    outputs = len(bodies["body"].outputs) - carried
    directions = numbers.get("directions" if batched else "scan_input_directions")
    attributes = {
        **bodies,
        "carried": carried,
        "scanned": scanned,
        "batched": int(batched),
        "input_axes": numbers.get("scan_input_axes") or [0] * scanned,
        "output_axes": numbers.get("scan_output_axes") or [0] * outputs,
        "input_directions": directions or [0] * scanned,
        "output_directions": numbers.get("scan_output_directions") or [0] * outputs,
    }
    return Form(names, attributes)
