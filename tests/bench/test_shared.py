"""What bench.shared measures, and the group that it makes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench import shared


def test_figures_are_over_the_quiet_median():
    found = shared.compared(quiet=[0.002] * 98 + [0.004] * 2, busy=[0.002] * 50 + [0.006] * 50)
    assert found == pytest.approx({"quiet ms": 2, "quiet p99": 2, "median": 2, "mean": 2, "p99": 3})


@pytest.mark.parametrize(
    ("mount", "files"),
    [("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}), ("", {"cpu.max": "150000 100000"})],
)
def test_the_group_of_either_version_gets_the_quota(tmp_path: Path, monkeypatch, mount: str, files: dict[str, str]):
    (tmp_path / mount).mkdir(exist_ok=True)
    monkeypatch.setattr(shared.time, "sleep", lambda _: None)
    with shared.quota_group(1.5, tmp_path) as group:
        assert group.parent == tmp_path / mount
        assert {path.name: path.read_text() for path in group.iterdir()} == files


class Fake:
    """An engine whose calls take a millisecond over its threads."""

    def __init__(self, key: str, threads: int) -> None:
        self.threads, self.pid = threads, threads

    def prepare(self, problem: object) -> list:
        return [type("Form", (), {"form": "auto"})]

    def time(self, form: str, seconds: float) -> list[float]:
        return [0.001 / self.threads] * 3

    def close(self) -> None:
        pass


def test_both_tables(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(shared, "Engine", Fake)
    monkeypatch.setattr(shared.time, "sleep", lambda _: None)
    short = ["--lines", "dw144", "--rounds", "1", "--cgroups", str(tmp_path)]
    assert shared.main([*short, "--json", str(tmp_path / "figures.json")]) == 0
    told = json.loads((tmp_path / "figures.json").read_text())
    assert told["busy"]["mobilenetv2:dw144"]["onnxruntime"]["median"] == 1
    assert told["quota"]["mobilenetv2:dw144"]["1 thread, median"] == 1
    assert told["quota"]["mobilenetv2:dw144"]["2 threads, longest"] == 0.5
    assert (tmp_path / f"cpuconv-bench-{os.getpid()}" / "cgroup.procs").read_text() == "2"
    assert "under a quota of 1.5 cores" in capsys.readouterr().out


def test_where_groups_cannot_be_made(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(shared, "Engine", Fake)
    assert shared.main(["--lines", "dw144", "--rounds", "1", "--cgroups", str(tmp_path / "none")]) == 0
    assert "Control groups cannot be made here" in capsys.readouterr().out
