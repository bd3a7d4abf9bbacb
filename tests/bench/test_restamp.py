"""Rows under former stamps of the same kernels are stamped anew, others and the latest of equal ones are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.machine.device import fingerprint
from autotune.store.rows import KEY, Finished, Row
from autotune.store.store import Store
from autotune.wisdom import document, exchange
from bench import restamp

HERE = fingerprint()
NEW, OLD = restamp.STAMPS["winograd"]
TOGETHER, ALL = restamp.STAMPS["(all together)"]


def row(candidate: str, sources: str, **values: object) -> Row:
    made = Row(HERE.key, "p", f"winograd({candidate})", sources, "ok", median=1e-3, score=1e-3, created=1e9)
    return made._replace(**values)


ROWS = [
    row("v=1", OLD),
    row("v=2", OLD, state="rejected", reason="slow"),
    row("v=3", OLD, created=3e9, median=2e-3),
    row("v=3", NEW, created=2e9),
    row("v=4", OLD, created=1e9),
    row("v=4", NEW, created=2e9, median=3e-3),
    row("v=5", "of other kernels"),
]
ANEW = {
    ("winograd(v=1)", NEW, 1e-3),
    ("winograd(v=2)", NEW, 1e-3),
    ("winograd(v=3)", NEW, 2e-3),
    ("winograd(v=4)", NEW, 3e-3),
    ("winograd(v=5)", "of other kernels", 1e-3),
}
FINISHED = [
    Finished(HERE.key, "p", "warm", "quick", ALL, 1, 1e9),
    Finished(HERE.key, "p", "warm", "normal", "others", 1, 1e9),
]


@pytest.fixture(params=["store", "wisdom"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of either kind that holds the rows."""
    with Store(tmp_path / "store.sqlite") as store:
        store.write([(HERE, {})], ROWS, FINISHED, [])
        if request.param == "store":
            return store.path
        path = tmp_path / "wisdom.json"
        path.write_text(document.render(exchange.from_store(store)))
        return path


def found(path: Path) -> set[tuple[str, str, float]]:
    known = exchange.load(path)
    assert known.count() == len({tuple(getattr(each, name) for name in KEY) for each in known})
    return {(each.candidate, each.sources, each.median) for each in known}


def test_rows_of_equal_sources_are_stamped_anew(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = found(path)
    assert restamp.main([str(path), "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{path}: 4 rows and 1 tunings would be stamped anew\n"
    assert found(path) == before == {(each.candidate, each.sources, each.median) for each in ROWS}

    assert restamp.main([str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 4 rows and 1 tunings stamped anew\n"
    assert found(path) == ANEW
    assert {each.effort: each.sources for each in exchange.load(path).finished} == {
        "quick": TOGETHER,
        "normal": "others",
    }

    assert restamp.main([str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 0 rows and 0 tunings stamped anew\n"
    assert found(path) == ANEW


def test_a_problem_counts_as_tuned_after_that(tmp_path: Path) -> None:
    """With the sources that the stamps are of."""
    pairs = [stamps for name, stamps in restamp.STAMPS.items() if name != "(all together)"]
    sources, texts = zip(*pairs, strict=True)
    with Store(tmp_path / "store.sqlite") as store:
        store.register(HERE)
        store.finish(HERE.key, "p", effort="quick", sources=texts)
        assert not store.is_finished(HERE.key, "p", efforts=["quick"], sources=sources)
        assert restamp.restamp(store.path, dry_run=False) == (0, 1)
        assert store.is_finished(HERE.key, "p", efforts=["quick"], sources=sources)


def test_what_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert restamp.main([str(other), str(tmp_path / "missing")]) == 1
    told = capsys.readouterr().err
    assert "is refused" in told and "missing" in told


def test_without_files_the_store_and_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(restamp, "TABLES", tmp_path / "tables")
    assert restamp.main([]) == 0 and capsys.readouterr().out == ""
    with Store() as store:
        store.write([(HERE, {})], ROWS, FINISHED, [])
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.json").write_text(document.render(exchange.from_store(store)))
    assert restamp.main([]) == 0
    assert capsys.readouterr().out.count("4 rows and 1 tunings stamped anew") == 2
    assert found(store.path) == found(tmp_path / "tables" / "a.json") == ANEW
