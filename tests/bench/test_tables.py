"""Device tables: which are made, that only whole ones are written, and the pages that show them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from autotune.machine.device import fingerprint
from baselib.files import write_whole
from bench import race, report, tables
from bench.engine import EngineError
from bench.peers import CPUCONV, OWN_F32
from bench.results import LineResult
from bench.settings import Settings
from bench.tables.__main__ import main, parser, wanted
from bench.typed import types_of
from cpuconv.problem.reading import sources
from support.tuner.bench_fakes import LINE, ROOFS, FakeEngine, measurement, run_of

DIRECT = "direct(v=1,rows=1,cols=6,block=6)"
SHAPES = 'mb1ic64ih8oc64oh8kh3ph1n"net:a"\nmb1ic64ih8oc64oh8kh1ph0n"net:b"\n'
VARIANTS = ("auto", "NCHW", "auto, batch 8")
WARM = tables.warm
PAGES = ("page.md", "overview.md", "families.md")
PAGE = f"Text.\n{report.BEGIN}\nold\n{report.END}\nNotes.\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with lines, a page and a place for tables; engines that answer at once; no tuning."""

    def start(key: str, threads: int, options: object, timeout: float) -> FakeEngine:
        seconds = {CPUCONV: 1.0, OWN_F32: 2.6, "torch": 1.02 if threads == 1 else 2.0}
        return FakeEngine(key, {"auto": seconds[key]}, 0.0, DIRECT if key == CPUCONV else "")

    monkeypatch.setattr(race, "Engine", start)
    monkeypatch.setattr(tables, "warm", lambda *_: None)
    (tmp_path / "lines.txt").write_text(SHAPES)
    for page, name in zip(PAGES, ("PAGE", "OVERVIEW", "FAMILIES"), strict=True):
        (tmp_path / page).write_text(PAGE)
        monkeypatch.setattr(tables, name, tmp_path / page)
    (tmp_path / "tables").mkdir()
    monkeypatch.setattr(tables, "FOLDER", tmp_path / "tables")
    return tmp_path


def run(place: Path, *more: str) -> int:
    return main(["--shapes", str(place / "lines.txt"), "--peers", "torch", "--rounds", "2", *more])


def written(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "tables").iterdir())


def test_all_tables_in_two_files_and_the_page(place, capsys):
    assert run(place, "--threads", "1,2", "--nchw", "--batch", "8") == 0
    data_file, text_file = sorted((place / "tables").iterdir())
    assert data_file.stem == text_file.stem == fingerprint().name
    data, text, page = json.loads(data_file.read_text()), text_file.read_text(), (place / "page.md").read_text()
    titles = [f"{threads}, layouts {rest}" for threads in ("1 thread", "2 threads") for rest in VARIANTS]
    assert [table["title"] for table in data["tables"]] == titles
    assert [f"## {title}" for title in titles] == [line for line in text.splitlines() if line.startswith("## ")]
    assert {table["runs"] for table in data["tables"]} == {3}
    assert page.startswith("Text.\n") and page.endswith("Notes.\n") and "old" not in page
    assert page.count("| all ") == len(titles) and "Below 1.05 against the best peer: net:a, net:b." in page
    assert page.count("| net:a ") == page.count("| net:b ") == 1  # the lines of the first table
    printed = capsys.readouterr()
    assert "has no note on: net:a, net:b." in " ".join(printed.err.split())
    families = (place / "families.md").read_text()
    assert printed.out.strip() in families and families.count("| all ") == 1 and "net:a |" not in families


def test_a_line_with_a_note_is_not_asked_for_again(place):
    assert run(place, "--threads", "1") == 0
    assert tables.unexplained(tables.kept()) == ["net:a", "net:b"]
    with (place / "page.md").open("a") as page:
        page.write("**net:a**: bound by stores.")
    assert tables.unexplained(tables.kept()) == ["net:b"]


def test_two_devices_share_the_page(place):
    results = [LineResult(LINE, [measurement(ROOFS, DIRECT, cpuconv=[[1.0]], torch=[[2.0]])])]
    table = report.to_dict(results, run_of(CPUCONV, "torch")) | {"date": "2020-01-01T00:00:00+00:00"}
    other = {"cpu": "Other CPU", "tables": [table]}
    (place / "tables" / "other-cpu.json").write_text(json.dumps(other))
    assert run(place, "--threads", "2") == 0
    page, overview, families = texts = [(place / name).read_text() for name in PAGES]
    assert "### Other CPU (other-cpu)" in page and "other-cpu" not in families  # it was measured before
    assert f"### {report.machine_name()} ({fingerprint().name})" in page
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in overview.splitlines() if " thread" in row]
    assert [row[0].rpartition("(")[2] for row in rows] == sorted([f"{fingerprint().name})", "other-cpu)"])
    assert {tuple(row[2:]) for row in rows} == {("2.00 (2.00)", "0 of 2"), ("2.00 (2.00)", "0 of 1")}
    for name in PAGES:
        (place / name).write_text(PAGE)
    assert run(place, "--render") == 0
    assert [(place / name).read_text() for name in PAGES] == texts


def test_the_pages_show_the_tables_that_are_kept():
    for path, text in tables.pages(tables.kept()).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m bench.tables --render"


def test_the_tables_asked_for():
    asked = wanted(parser().parse_args(["--threads", "2", "--nchw", "--batch", "8,16", "--runs", "1"]))
    assert [(each.threads, each.layouts, each.batch) for each in asked] == [
        (2, ("auto",), None),
        (2, ("NCHW",), None),
        (2, ("auto",), 8),
        (2, ("auto",), 16),
    ]
    usual = wanted(parser().parse_args([]))
    assert [(each.threads, each.runs, each.plain) for each in usual] == [(1, 3, False), (2, 3, False)]


@pytest.mark.parametrize("failure, code", [(KeyboardInterrupt(), 130), (EngineError("boom"), 1)])
def test_nothing_is_written_of_a_table_that_is_not_whole(place, monkeypatch, failure, code):
    real = FakeEngine.time

    def time_or_fail(self, form, seconds):
        if self.key == CPUCONV and self.asked["auto"] == 3:  # in the second line
            raise failure
        return real(self, form, seconds)

    monkeypatch.setattr(FakeEngine, "time", time_or_fail)
    assert run(place, "--threads", "1") == code
    assert written(place) == [] and {(place / name).read_text() for name in PAGES} == {PAGE}


@pytest.mark.parametrize("ended, code", [(130, 130), (1, 1)])
def test_nothing_is_measured_after_a_warmup_that_failed(place, monkeypatch, ended, code):
    monkeypatch.setattr(tables, "warm", WARM)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, ended))
    assert run(place, "--threads", "1") == code
    assert written(place) == []


def test_the_warmup_tunes_the_very_problems(monkeypatch):
    seen = []

    def tune(command: list[str], **_: object) -> subprocess.CompletedProcess:
        own = command[command.index("-m") + 1 :]  # behind the interpreter and what launches it
        seen.append((own[:2], own[3:], sources.load(own[2])))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", tune)
    tables.warm([LINE], Settings(threads=2, layouts=("NCHW",)), "quick")
    ((command, options, entries),) = seen
    assert command == ["autotune", "warmup"]
    assert options == ["--threads", "2", "--layouts", "NCHW", "--effort", "quick"]
    assert [(entry.problem, entry.label) for entry in entries] == [(LINE.problem, LINE.label)]
    typed = dataclasses.replace(LINE, problem=dataclasses.replace(LINE.problem, types=types_of("int8")))
    tables.warm([typed], Settings(), "quick")
    assert [(entry.problem, entry.label) for entry in seen[1][2]] == [(typed.problem, typed.label)]


def test_tables_in_other_types_follow_those_of_float32(place):
    asked = wanted(parser().parse_args(["--types", "bf16,int8", "--threads", "1,2"]))
    told = [(each.threads, str(each.types), OWN_F32 in each.peers) for each in asked]
    both = [("f32:f32:f32", False), ("bf16:bf16:bf16", True), ("u8:s8:u8", True)]
    assert told == [(threads, *rest) for threads in (1, 2) for rest in both]
    assert run(place, "--threads", "1", "--types", "int8") == 0
    (data_file, _) = sorted((place / "tables").iterdir())
    plain, low = json.loads(data_file.read_text())["tables"]
    assert (plain["types"], low["types"]) == ("fp32", "u8:s8:u8")
    assert low["title"] == "1 thread, layouts auto, types u8:s8:u8"
    assert all("--dt=u8:s8:u8" in line["problem"] for line in low["lines"])
    assert low["geomean"]["Own-Fp32"]["median"] == 2.6
    assert "Own-Fp32" in (place / "overview.md").read_text()


def test_a_race_without_our_figure_is_no_table(monkeypatch):
    def start(key: str, *_: object) -> FakeEngine:
        if key == CPUCONV:
            raise EngineError("it does not import")
        return FakeEngine(key, {"plain": 1.0})

    monkeypatch.setattr(race, "Engine", start)
    with pytest.raises(tables.Incomplete, match="no figure on a:1"):
        tables.measured([LINE], Settings(peers=("torch",), rounds=1), Console(quiet=True))


def test_devices_of_one_model_are_kept_apart(place, monkeypatch):
    for cpu_name in ("znver4", "znver5"):
        here = dataclasses.replace(fingerprint(), vendor="AuthenticAMD", cpu_name=cpu_name, cores=2, features="")
        monkeypatch.setattr(tables, "fingerprint", lambda here=here: here)
        assert run(place, "--threads", "1") == 0
    names = ["amd-znver4-2c", "amd-znver5-2c"]
    assert written(place) == [f"{name}.{kind}" for name in names for kind in ("json", "md")]
    page = (place / "page.md").read_text()
    assert all(page.count(f"({name})") == 1 for name in names)


def test_files_are_written_whole_or_not_at_all(tmp_path):
    first, second = tmp_path / "first", tmp_path / "missing" / "second"
    first.write_text("old")
    with pytest.raises(FileNotFoundError):
        write_whole({first: "new", second: "new"})
    assert first.read_text() == "old" and list(tmp_path.iterdir()) == [first]
    second.parent.mkdir()
    write_whole({first: "new", second: "é"})
    assert first.read_text() == "new" and second.read_text(encoding="utf-8") == "é"
    assert list(tmp_path.glob(".*")) == [] and list(second.parent.glob(".*")) == []
