"""Roofs that were measured on a busy machine, pages of a warmup, and what a whole run is beside its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.cli.main import main
from autotune.cli.options import OK
from autotune.machine.roofline import PAST, busy_note
from autotune.report.table_rows import ProblemRow, whole_text
from autotune.store.store import Store, Use
from support.tuner import fake

pytestmark = pytest.mark.usefixtures("fake_workload")
AGAIN = "rows above the roofs, which were measured while the machine was busy: measuring these again"
BUSY = "the roofs were measured while the machine was busy; 'autotune doctor --measure' measures them again"


@pytest.fixture
def peaks(altered: Callable[..., None]) -> Callable[..., None]:
    """Have the roofs measured with these FMA peaks, one after the other; the last of them stays."""

    def put(*figures: float) -> None:
        left, inner = list(figures), fake.Fake.probe

        def probe(self: fake.Fake, threads: int) -> Iterator[tuple[str, float]]:
            peak = left.pop(0) if len(left) > 1 else left[0]
            for name, value in inner(self, threads):
                yield name, peak if name == "float32_gflops" else value

        altered(probe=probe)

    return put


def peak() -> float:
    (fields,) = Store().devices().values()
    return fields["roofs"]["1"]["float32_gflops"]


def test_roofs_are_measured_again_when_a_row_is_above_them(peaks, capsys: pytest.CaptureFixture[str]) -> None:
    peaks(5.0, 15.0)  # the fastest candidate has 10
    assert main(["warmup", "good:2", "--threads", "1"]) == OK
    told = capsys.readouterr()
    assert AGAIN in told.err and BUSY not in told.out and peak() == 15.0
    assert main(["warmup", "good:2", "--threads", "1"]) == OK
    assert AGAIN not in capsys.readouterr().err


def test_tables_say_what_cannot_be_measured_better(peaks, capsys: pytest.CaptureFixture[str]) -> None:
    peaks(5.0, 4.0)
    assert main(["warmup", "good:2", "--threads", "1"]) == OK
    told = capsys.readouterr()
    assert AGAIN in told.err and BUSY in told.out and peak() == 5.0  # the higher one stays
    for arguments in (["table"], ["table", "--format", "html"], ["explain", "good:2"]):
        assert main(arguments) == OK
        assert "measured while the machine was busy" in capsys.readouterr().out
    assert main(["warmup", "good:2", "--threads", "1", "--no-roofs"]) == OK
    assert AGAIN not in capsys.readouterr().err


def test_notes_begin_beyond_what_timing_errs_by() -> None:
    assert busy_note([None, 0.5, PAST]) is None and busy_note([]) is None
    assert busy_note([1.0, 2.2]) == f"up to 220% of a roof: {BUSY}"


def test_a_warmup_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "table.html"
    assert main(["warmup", "good:2", "--threads", "1", "--html", str(page)]) == OK
    assert "good:2" in page.read_text() and page.read_text().lower().startswith("<!doctype html>")
    with pytest.raises(SystemExit):
        main(["warmup", "good:2", "--html", str(tmp_path / "none" / "table.html")])
    assert "must be a file in a folder that exists" in capsys.readouterr().err


def test_a_whole_run_is_told_with_its_rows() -> None:
    use = Use("net", 1, "", "conv1", "good:1 threads=1", 3, 1e6)
    line = ProblemRow(use, SimpleNamespace(median=2e-3))
    assert whole_text(8.1e-3, [line]).startswith("8.10 ms for a whole run: 6.00 in the rows above, 2.10 in other")
    assert "sum to 6.00" in whole_text(5e-3, [line])
    assert whole_text(5e-3, []) == "5.00 ms for a whole run"


def test_the_doctor_is_short_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--measure"]) == OK
    short = capsys.readouterr().out
    assert main(["doctor", "--verbose"]) == OK
    long = capsys.readouterr().out
    assert "workload sources" in long and "workload sources" not in short
    assert "L1 bandwidth" in long and "L1 bandwidth" not in short and "FMA peak, float32" in short
    assert len(short.splitlines()) < len(long.splitlines())
