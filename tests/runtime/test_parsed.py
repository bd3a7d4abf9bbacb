"""What is kept of parsed sources."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.sources import parsed, stamp
from cpuconv.runtime.code.sources.syntax import parse

MODULES = sorted(stamp.files())


@pytest.fixture
def parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The sources that were parsed, with an empty cache folder, in a package that ships nothing."""
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(parsed, "SHIPPED", tmp_path / "sources")
    seen: list[bytes] = []
    monkeypatch.setattr(parsed, "parse", lambda source: (seen.append(source), parse(source))[1])
    return seen


def source(number: int) -> bytes:
    return f"from cpuconv.isa import table\nSIZE = {number}".encode()


def test_a_source_is_parsed_once(parses: list[bytes]) -> None:
    sources = [source(0), source(1), source(0)]
    found = parsed.syntaxes(sources)
    assert found == [parse(each) for each in sources] and parses == sources[:2]
    assert parsed.syntaxes(sources) == found and len(parses) == 2
    assert parsed.syntaxes([source(2), source(1)]) == [parse(source(2)), found[1]]
    assert parses == [source(0), source(1), source(2)]
    assert parsed.syntaxes(sources) == found and len(parses) == 3


def test_a_start_parses_nothing_that_is_kept(parses: list[bytes]) -> None:
    for _ in range(3):
        stamp.known_syntaxes.cache_clear()
        assert stamp.known_syntaxes().keys() == set(MODULES)
    assert len(parses) == len({path.read_bytes() for path in stamp.files().values()})


def test_nothing_is_parsed_that_the_package_ships(parses: list[bytes]) -> None:
    parsed.ship([source(0), source(1)], parsed.SHIPPED)
    del parses[:]
    assert parsed.syntaxes([source(1), source(0)]) == [parse(source(1)), parse(source(0))]
    assert parses == [] and not parsed.cache_path().exists()
    assert parsed.syntaxes([source(2), source(0)]) and parses == [source(2)]
    parsed.SHIPPED.write_bytes(parsed.SHIPPED.read_bytes()[:-1])
    parsed.cache_path().unlink()
    assert parsed.syntaxes([source(1)]) == [parse(source(1))] and parses == [source(2), source(1)]


def test_another_rule_parses_again(parses: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    parsed.syntaxes([source(0)])
    monkeypatch.setattr(parsed, "_rules", lambda: hashlib.sha256(b"another version of runtime.syntax"))
    parsed.syntaxes([source(0)])
    assert len(parses) == 2


@pytest.mark.parametrize(
    "damage", [lambda told: b"", lambda told: told[:-1], lambda told: told[:40] + b"x" + told[41:]]
)
def test_what_is_damaged_is_parsed_again(parses: list[bytes], damage: Callable[[bytes], bytes]) -> None:
    found = parsed.syntaxes([source(0)])
    path = parsed.cache_path()
    path.write_bytes(damage(path.read_bytes()))
    assert parsed.syntaxes([source(0)]) == found and len(parses) == 2
    assert parsed.syntaxes([source(0)]) == found and len(parses) == 2  # mended


@pytest.mark.parametrize("told", [b"[]", b"{", b'{"key": 1}', b'{"key": ["content", "too few"]}'])
def test_what_another_version_kept_is_parsed_again(parses: list[bytes], told: bytes) -> None:
    checked_file.write(parsed.cache_path(), told)
    assert parsed.syntaxes([source(0)]) == [parse(source(0))] and len(parses) == 1


@pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
def test_what_others_may_write_is_not_read(parses: list[bytes]) -> None:
    parsed.syntaxes([source(0)])
    path = parsed.cache_path()
    path.chmod(0o666)
    parsed.syntaxes([source(0)])
    assert len(parses) == 2 and not path.stat().st_mode & 0o022
    path.parent.chmod(0o777)
    assert parsed.cache_path() is None
    assert parsed.syntaxes([source(0)]) == [parse(source(0))] and len(parses) == 3


def test_where_nothing_can_be_kept(parses: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, and no folder")
    for _ in range(2):
        assert parsed.syntaxes([source(0)]) == [parse(source(0))]
    assert len(parses) == 2


def test_what_is_kept_is_bounded(parses: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed, "MAX_SOURCES", 4)
    parsed.syntaxes(map(source, range(3)))
    parsed.syntaxes(map(source, range(3, 6)))
    assert len(parses) == 6
    parsed.syntaxes(map(source, range(3, 6)))  # the latest stay
    assert len(parses) == 6
    assert len(parsed.read(parsed.cache_path())) == 4
