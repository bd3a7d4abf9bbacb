"""How networks scale over cores: what is measured first, where a run's time goes, and the page."""

from __future__ import annotations

import pytest

from bench import many_cores, many_cores_page
from cpuconv.network.reports.profile import Profile
from cpuconv.network.reports.timing import Span, Watched


def test_most_threads_and_one_come_first() -> None:
    planned = many_cores.stages((1, 2, 4, 8))
    assert [stage.threads for stage in planned[:2]] == [8, 1]
    assert len(set(planned)) == len(planned)
    assert {stage.threads for stage in planned if stage.kind == "layers"} == {1, 2, 4, 8}


def test_parts_of_a_run_add_up_to_it() -> None:
    spans = [
        Span(0, 0, 1.0, 3.0), Span(0, 1, 1.0, 2.0),  # shared: 1 of 2 threads waits for 1 s
        Span(1, 0, 4.0, 5.0),  # one thread alone, 1 s after the other
    ]  # fmt: skip
    found = many_cores.parts(Profile([], 6.0, 2, Watched(6.0, spans)), threads=2, busy=3.0)
    assert found == pytest.approx(
        {"work": 1.0, "slower": 0.5, "imbalance": 0.5, "serial": 1.0, "joins": 3.0, "rows": 1}
    )
    assert sum(found[name] for name in many_cores_page.PARTS) == pytest.approx(6.0)


def test_the_page_shows_efficiency_and_what_is_left_out() -> None:
    def table(threads: int, seconds: float) -> dict:
        timing = {"cpuconv": {"median": seconds}, "onnxruntime": {"median": 2 * seconds}}
        engines = {"cpuconv": {"name": "cpuconv", "version": "1"}, "onnxruntime": {"name": "ORT", "version": "2"}}
        line = {"label": "net", "engines": timing, "without": {}, "ratio": {"median": 2.0}, "notes": []}
        stage = {"kind": "networks", "precision": "float32", "batch": 1, "threads": threads}
        return {**stage, "engines": engines, "lines": [line]}

    found = {"cpu": "CPU", "cores": 4, "roofs": {1: 100.0, 4: 300.0}, "tables": [table(1, 1.0), table(4, 0.5)]}
    page = many_cores_page.page({**found, "profiles": {}, "callers": {}, "left_out": ["callers"]})
    assert "300 GFLOP/s on 4 (75%)" in page
    assert "| net            | cpuconv  | 50%         |" in page
    assert "Left out, as time was up: callers." in page
