"""How the code is divided: files of one idea, and a graph that is only a graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from support.running.processes import ROOT, SHIPPED

MAX_LINES = 400  # of a file
MAX_OF_GRAPH = 10_750  # lines of what a network is


def files(*folders: str) -> Iterator[tuple[Path, int]]:
    """The Python files below folders, and their lines."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), len(path.read_text(encoding="utf-8").splitlines())


def test_a_file_has_one_idea():
    assert {str(path): lines for path, lines in files(*SHIPPED, "bench", "tests") if lines > MAX_LINES} == {}


def test_what_a_network_is_stays_small():
    assert sum(lines for _, lines in files("cpuconv/graph")) < MAX_OF_GRAPH
