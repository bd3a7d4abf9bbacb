"""The order in which sources of a selection are asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cpuconv.conv.choice import select, sources
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.choice.query import Query
from support.example import PROBLEM

ORDER = ["named", "recorded", "size_class", "one_thread", "older_kernels", "stored", "nearest_problem", "modelled"]


def test_each_source_has_a_file_and_a_place() -> None:
    assert [source.__module__.rpartition(".")[2] for source in select.SOURCES] == ORDER
    assert {path.stem for path in Path(sources.__path__[0]).glob("*.py")} == {*ORDER, "__init__"}


@pytest.mark.parametrize("at", range(len(ORDER)))
def test_the_first_source_that_decides_is_the_last_that_is_asked(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choice, asked = select.untuned(PROBLEM, Limits()), list[int]()

    def source(number: int) -> Callable[[Query], Choice | None]:
        return lambda query: asked.append(number) or (choice if number >= at else None)

    monkeypatch.setattr(select, "SOURCES", tuple(map(source, range(len(ORDER)))))
    assert select.decide(Query(PROBLEM, "heuristic", Limits(), select.decide, algorithm=f"{at}")) is choice
    assert asked == [*range(at + 1)]
