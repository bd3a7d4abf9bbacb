"""What threads of a server share, when several need it first at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from autotune.wisdom import tiers
from baselib.locks import lazy
from cpuconv.conv.session import Session
from support.running import processes
from support.running.callers import at_once


def test_a_lazy_attribute_is_one_value_for_all_threads() -> None:
    together = threading.Barrier(4)

    class Owner:
        @lazy
        def value(self) -> object:
            together.wait(60)  # all compute it
            return object()

    owner, seen = Owner(), set()
    at_once(4, lambda _: seen.add(id(owner.value)))
    assert seen == {id(owner.value)}
    assert isinstance(Owner.value, lazy)


def test_fingerprints_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else weights that one thread packed are not found by another."""
    from cpuconv.conv import session

    made: list[object] = []
    together = threading.Barrier(4)

    class Fingerprinter:
        def __init__(self) -> None:
            together.wait(60)
            made.append(self)

    monkeypatch.setattr(session, "Fingerprinter", Fingerprinter)
    here, seen = Session(tables=tmp_path, persistent=False), set()
    at_once(4, lambda _: seen.add(id(here.fingerprint)))
    assert len(made) == 4 and len(seen) == 1


def test_winners_are_told_even_if_others_make_room_meanwhile(tmp_path: Path) -> None:
    """Another thread may forget all answers between two steps of this one."""

    class Forgetful(dict):
        def __setitem__(self, key: object, value: object) -> None:
            pass

    asked = tiers.Tiers(tmp_path)
    asked._look("device").winners = Forgetful()
    assert asked.winners("device", "%", ["sources"]) == []


def test_attributes_have_no_lock_that_a_child_could_find_held() -> None:
    sources = [path for name in processes.SHIPPED for path in (processes.ROOT / name).rglob("*.py")]
    users = [path for path in sources if "cached_property" in path.read_text()]
    assert users == [processes.ROOT / "baselib" / "locks.py"]
