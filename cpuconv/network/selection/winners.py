"""Stored results of comparisons of a network's plans, timed in whole runs.

A network is identified by a hash of its operators, their connections, and all sizes; weights and names are not hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.store.rows import Row, RowLimits
from autotune.store.store import sources_hash
from autotune.workload import WEIGHTS
from cpuconv.conv import session
from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.target import IN_NETWORK, PRECISION_F32, Target
from cpuconv.conv.kernels_hash import kernels_hash
from cpuconv.conv.recipe import current_sources
from cpuconv.graph.ir import Graph
from cpuconv.network.selection.layout import NetworkPlan, lay_out
from cpuconv.network.selection.planning import PLANS


def sources() -> str:
    """Hash of the sources of all kernels; timings of other sources are ignored."""
    return sources_hash(current_sources())


def key_of(graph: Graph, target: Target) -> str:
    """The key of a network in the store: "network", a hash, the instruction set, the precision unless float32, and the
    number of threads."""
    index = {name: str(at) for at, name in enumerate((*graph.inputs, *graph.constants))}
    digest = hashlib.sha256()
    for node in graph.nodes:
        values = [str(graph.value(name)) if name else "" for name in (*node.inputs, *node.outputs)]
        for name in node.outputs:
            index[name] = str(len(index))
        names = [index.get(name, "") for name in (*node.inputs, *node.outputs)]
        own = target.of(node.sources).precision
        stated = (own,) if own != target.precision else ()
        digest.update(repr((node.op, names, values, _plain(node.attributes), *stated)).encode())
    digest.update(repr([index[name] for name in graph.outputs]).encode())
    precision = "" if target.precision == PRECISION_F32 else f"{target.precision} "
    return f"network {digest.hexdigest()[:24]} {target.isa.name} {precision}threads={target.threads}"


def winner(graph: Graph, target: Target) -> str | None:
    """The fastest plan of a network in whole runs, if one is stored and valid for the target."""
    if target.strategy == "heuristic" or target.limits != IN_NETWORK:
        return None
    device, tiers, kind = session.current.device, session.current.tiers, f"network % threads={target.threads}"
    if not any(tiers.winners(device, kind, {sources()}, weights) for weights in WEIGHTS):
        return None  # no network has been timed; hashing this one would take longer than planning its layout
    limits, key = RowLimits(frozenset({sources()})), key_of(graph, target)
    found = tiers.lookup(device, key, limits)
    faster = tiers.older(device, key, limits)
    rows = [each.row for each in (*faster, found) if each is not None and each.row.candidate in PLANS]
    return next((row.candidate for row in rows if is_current(row, graph, target)), None)


def is_current(row: Row, graph: Graph, target: Target) -> bool:
    """Whether a timed plan still runs the same kernels."""
    if row.sources == sources():
        return True
    return bool(row.kernels) and row.kernels == plan_hash(lay_out(graph, target, plan=row.candidate))


def plan_hash(plan: NetworkPlan) -> str:
    """Hash of the kernel calls of a plan's convolutions and matrix multiplications; empty if one is unknown."""
    details = (each.offer.detail for each in plan.nodes if each.offer is not None)
    hashes = [
        kernels_hash(each.problem, each.choice.candidate) for each in details if isinstance(each, LayoutCandidate)
    ]
    return hashlib.sha256("\n".join((plan.plan, *hashes)).encode()).hexdigest()[:16] if all(hashes) else ""


def _plain(attributes: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [
        (name, value.tobytes() if isinstance(value, np.ndarray) else value)
        for name, value in sorted(attributes.items())
    ]
