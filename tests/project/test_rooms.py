"""How the code is divided: files of one idea, rooms that can be seen at a glance, and a graph that is only a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.running.processes import ROOT

PACKAGES = ("autotune", "bench", "cpuconv", "layouts", "tests")
MOST_LINES = 400  # of a file
MOST_FILES = 12  # of a room, its docstring aside
MOST_OF_GRAPH = 9500  # lines of what a network is
TABLES = {"cpuconv/graph/ops", "cpuconv/graph/passes", "cpuconv/solvers"}
"""Rooms whose files have one shape, each a line of a table: a family of operators, a rewrite, an algorithm."""


def files(*folders: str) -> Iterator[tuple[Path, int]]:
    """The Python files below folders, and their lines."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), len(path.read_text(encoding="utf-8").splitlines())


def test_a_file_has_one_idea():
    assert {str(path): lines for path, lines in files(*PACKAGES) if lines > MOST_LINES} == {}


def test_a_room_is_seen_at_a_glance():
    named = (path for path, _ in files("autotune", "cpuconv", "layouts") if path.stem[0] != "_")
    rooms = Counter(path.parent.as_posix() for path in named)
    assert {room: count for room, count in rooms.items() if count > MOST_FILES and room not in TABLES} == {}


def test_what_a_network_is_stays_small():
    assert sum(lines for _, lines in files("cpuconv/graph")) < MOST_OF_GRAPH
