"""Layout plans of networks stored on disk, as planning takes a third of the time of compiling.

A file contains the result of `lay_out` for one network. Its name is a hash of all inputs of the planning: operators,
sizes, names and small constants of the graph, the target, the machine, the package's files, and the tuning results. If
any of these changes, the hash changes, and the layout is planned again. A damaged file is ignored, and so is a name
that is not a solver's candidate; nothing in a file is executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from baselib import ownership
from baselib.files import private_mode, read_regular, write_whole
from baselib.paths import cache_folder
from cpuconv import origin
from cpuconv.conv import session
from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.model import Choice
from cpuconv.conv.choice.select import note_untuned
from cpuconv.conv.choice.target import PRECISION_BF16, Target
from cpuconv.elements import BF16, F16
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph
from cpuconv.graph.ops.matrix import Streamed
from cpuconv.kernels.binding.machine import machine
from cpuconv.network.selection.decisions import Decisions, name_of
from cpuconv.network.selection.layout import NetworkPlan, lay_out
from cpuconv.network.selection.winners import key_of, winner
from cpuconv.problem.problem import ConvProblem

FOLDER = "layouts"
MAX_FILES = 512  # files, of about 30 KB each
MAX_FILE_BYTES = 1 << 22  # maximum size of a file; that of a network of 100,000 nodes needs a fifth
_SMALL = 1 << 12  # maximum size of a constant that a layout may depend on, in bytes; longer ones are weights


def load_or_plan_layout(graph: Graph, target: Target, record: Decisions | None = None) -> NetworkPlan:
    """Plan the layout of a graph, or read the plan of an earlier process.

    Parameters
    ----------
    graph : Graph
    target : Target
    record : Decisions or None
        Decisions of another plan of the network, reused as in `lay_out`, which takes no longer than reading a file.
        None: use the plan that was fastest in a timed comparison, else the cost models.
    """
    if record is not None:
        return lay_out(graph, target, record)
    path = _path(graph, target)
    known = None if path is None else _read(path, graph, target)
    if known is not None:
        return known
    made = lay_out(graph, target, plan=winner(graph, target))
    if path is not None and not _follows_from_weights(made, target):
        _write(path, made)
    return made


def is_stored(graph: Graph, target: Target) -> bool:
    """Whether an earlier process stored the layout plan of a graph."""
    path = _path(graph, target)
    return path is not None and path.exists()


def _follows_from_weights(plan: NetworkPlan, target: Target) -> bool:
    """Whether narrow storage of weights depends on their values, which are not part of the hash."""
    exact = {F16} if target.precision == PRECISION_BF16 else {F16, BF16}
    details = (node.offer.detail for node in plan.nodes if node.offer is not None)
    return any(isinstance(detail, Streamed) and detail.w in exact for detail in details)


def _path(graph: Graph, target: Target) -> Path | None:
    """The file of a layout plan.

    None if plans are not stored: candidates are timed, the session stores nothing on disk, or there is no cache folder.
    """
    if not session.current.persistent or target.strategy == "profile" or target.tuner is not None:
        return None
    known = session.current.tiers.state(session.current.device)
    package = origin.files_state()
    if known is None or package is None:
        return None
    digest = hashlib.sha256(repr((key_of(graph, target), known, package, session.current.device, machine())).encode())
    digest.update(repr((target.strategy, target.limits, target.precision, target.isa)).encode())
    for node in graph.nodes:
        digest.update(f"{name_of(node)} {node.sources}\n".encode())
        for name in node.inputs:
            array = graph.constants.get(name)
            if array is not None and array.nbytes <= _SMALL:
                digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    try:
        return cache_folder() / FOLDER / f"{digest.hexdigest()[:32]}.json"
    except OSError:
        return None


def _read(path: Path, graph: Graph, target: Target) -> NetworkPlan | None:
    try:
        data = json.loads(read_regular(path, MAX_FILE_BYTES, cached=True))
        decisions = Decisions.from_dict(data["decisions"])
        plan, decided_by = str(data["plan"]), str(data["decided_by"])
        weighed = {str(name): float(seconds) for name, seconds in data["weighed"].items()}
        anew = tuple(map(str, data["anew"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, SourceError):
        return None
    made = lay_out(graph, target, decisions)
    if made.anew:
        return None
    for problem, choice in _convolutions(made):
        note_untuned(problem, target.strategy, target.limits, choice)
    return replace(made, plan=plan, decided_by=decided_by, weighed=weighed, anew=anew, recorded=decisions)


def _convolutions(plan: NetworkPlan) -> Iterator[tuple[ConvProblem, Choice]]:
    for node in plan.nodes:
        detail = None if node.offer is None else node.offer.detail
        if isinstance(detail, LayoutCandidate):
            yield detail.problem, detail.choice


def _write(path: Path, made: NetworkPlan) -> None:
    data = {"plan": made.plan, "decided_by": made.decided_by, "weighed": dict(made.weighed), "anew": made.anew}
    with contextlib.suppress(OSError, TypeError, ValueError):
        if ownership.claim(path.parent.parent, path.parent) is not None:
            return
        _evict_oldest(path.parent)
        text = json.dumps({**data, "decisions": made.decisions().to_dict()})
        write_whole({path: text}, mode=private_mode(path.parent), durable=False)


def _evict_oldest(folder: Path) -> None:
    """Remove the older half of the files, if there are too many."""
    with os.scandir(folder) as entries:
        files = sorted((entry.stat().st_mtime, entry.path) for entry in entries if entry.is_file())
    for _, path in files[: len(files) - MAX_FILES // 2] if len(files) >= MAX_FILES else ():
        with contextlib.suppress(OSError):
            os.unlink(path)
