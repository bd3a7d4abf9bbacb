"""Tables on terminals of every width."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselib import screen
from baselib.screen import Column, Report, Table, as_text, pairs_text

TABLE = Table(
    [
        Column("operator", least=8, keeps_end=True),
        Column("algorithm", rank=1, least=10),
        Column("µs", True),
        Column("note", rank=2),
        Column("never", rank=3),
    ],
    [
        ("features/block/expand", "winograd(rows=5,cols=6)", "12.5", "tuned", ""),
        ("fc", "direct(v=4)", "1.25", "", ""),
    ],
)


class Sample(Report):
    def blocks(self):
        yield "resnet: a line that is longer than most terminals of a moment ago were, and wraps"
        yield TABLE
        yield "total <1 ms>"


def test_in_full() -> None:
    lines = Sample().text().splitlines()
    assert lines[2] == "operator               algorithm                  µs  note"
    assert lines[4] == "features/block/expand  winograd(rows=5,cols=6)  12.5  tuned"
    assert lines[5] == "fc                     direct(v=4)              1.25"
    assert lines[-1] == "total <1 ms>" and lines[-2] == ""


def test_texts_shorten_before_columns_are_left_out() -> None:
    fitted, left_out = TABLE.used().fitted(44)
    assert left_out == []
    assert fitted.text().splitlines()[2] == "…/block/expand  winograd(rows=…  12.5  tuned"
    fitted, left_out = TABLE.used().fitted(26)
    assert left_out == ["note"]
    assert [column.title for column in fitted.columns] == ["operator", "algorithm", "µs"]
    assert TABLE.used().fitted(20)[1] == ["algorithm", "note"]


@given(st.integers(14, 90))
def test_no_line_is_wider(width: int) -> None:
    lines = as_text(iter([TABLE]), width, "wide").splitlines()
    assert max(map(len, lines)) <= width
    assert "12.5" in lines[2] and "1.25" in lines[3]


def test_terminals_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "terminal_width", lambda: 28)
    assert max(map(len, str(Sample()).splitlines())) <= 28
    assert repr(Sample()) == str(Sample()) and "left out for width: note\n" in str(Sample())
    monkeypatch.setattr(screen, "terminal_width", lambda: None)
    assert str(Sample()) == Sample().text() and "left out" not in str(Sample())


def test_html() -> None:
    made = Sample()._repr_html_()
    assert made.count("<tr>") == 3 and "total &lt;1 ms&gt;" in made
    assert re.findall(r"<th[^>]*>(\w+)</th>", made) == ["operator", "algorithm", "µs", "note"]  # "never" is empty
    assert '<td style="text-align:right;white-space:nowrap">12.5</td>' in made


def test_pairs_wrap_beside_their_names() -> None:
    told = pairs_text([("CPU", "a name of several words"), ("cores", "2")], 27)
    assert told.splitlines() == ["CPU    a name of several", "       words", "cores  2"]
    assert pairs_text([("CPU", "a name of several words")], None) == "CPU  a name of several words"
