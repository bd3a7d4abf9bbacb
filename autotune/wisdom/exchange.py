"""Exchange of wisdom with stores: export, import, merge, comparison, pruning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autotune.machine.roofline import newest_roofs
from autotune.store import database
from autotune.store.rows import DECIDED, PROVISIONAL, Finished, Row, RowLimits, Use, carried
from autotune.store.store import Store
from autotune.wisdom.document import DEVICE_RULES, Wisdom, WisdomError, device_of, parse, read, render
from baselib.files import open_regular


def load(path: Path) -> Wisdom:
    """Load the content of a file, a store or wisdom.

    Raises
    ------
    WisdomError
        The file is neither, or is refused.
    OSError
        The file cannot be read.
    """
    with open_regular(path) as file:
        is_store = file.read(len(database.MAGIC)) == database.MAGIC
    if not is_store:
        return read(path)
    with Store(path, read_only=True) as store:
        if (health := store.health()) != "ok":
            raise WisdomError(f"{path} is refused: {health}")
        try:
            return parse(render(from_store(store)).encode())  # checked by the same rules
        except WisdomError as error:
            raise WisdomError(f"{path} is refused: {error}") from None


def from_store(store: Store, devices: Collection[str] | None = None) -> Wisdom:
    """Return a store's content for these devices; None for all."""
    wisdom = Wisdom()
    for key, stored in store.devices().items():
        if devices is not None and key not in devices:
            continue
        try:
            device = device_of({name: stored.get(name) for name in DEVICE_RULES}, key)
        except WisdomError:
            continue
        if device.key != key:  # the stored fields are damaged
            continue
        wisdom.devices[key], wisdom.roofs[key] = device, stored["roofs"]
        for problem, weights in store.tuned(key):
            wisdom.add(store.rows(key, problem, weights))
        wisdom.finished += store.finished(key)
    wisdom.uses = list(dict.fromkeys(use for key in wisdom.devices for use in store.problems(key)))
    return wisdom


def into_store(wisdom: Wisdom, store: Store) -> None:
    """Write wisdom into a store, merged with its content, all or nothing."""
    rows = [row for key, new in wisdom.rows.items() for row in combined(new, store.rows(*key))]
    known = store.devices()
    devices = [
        (device, newest_roofs(known.get(key, {}).get("roofs", {}), wisdom.roofs.get(key, {})))
        for key, device in wisdom.devices.items()
    ]
    store.write(devices, rows, wisdom.finished, wisdom.uses)


def merge(parts: Iterable[Wisdom]) -> Wisdom:
    """Merge several into one; for the same row or device the newest one counts."""
    merged = Wisdom()
    finished: dict[tuple[str, ...], Finished] = {}
    uses: dict[tuple[Any, ...], Use] = {}
    for part in parts:
        merged.devices.update(part.devices)
        for key, roofs in part.roofs.items():
            merged.roofs[key] = newest_roofs(merged.roofs.get(key, {}), roofs)
        for problem, rows in part.rows.items():
            merged.rows[problem] = combined(rows, merged.rows.get(problem, []))
        for done in part.finished:
            asked = done.device, done.problem, done.weights, done.effort
            finished[asked] = max(done, finished.get(asked, done), key=lambda record: record.created)
        uses.update({(u.network, u.threads, u.layouts, u.label, u.problem): u for u in part.uses})
    merged.finished, merged.uses = list(finished.values()), list(uses.values())
    return merged


def combined(some: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Combine the rows of two tunings of one problem.

    Rows of the later tuning stay as they are (a decided tuning counts as later than a provisional one). Rows that only
    the earlier one has are rescaled to the later one's speed, by the candidates that both timed.
    """
    if not some or not others:
        return [*some, *others]
    older, newer = sorted((some, others), key=_standing)
    return sorted([*newer, *carried(older, newer)], key=lambda row: row.rank)


def _standing(rows: Sequence[Row]) -> tuple[bool, float]:
    """Sort key of tunings of a problem; the most relevant one comes last."""
    return all(row.state != PROVISIONAL for row in rows), max(row.created for row in rows)


def table_of(wisdom: Wisdom, device: str, limits: RowLimits, sources_of: Callable[[str], str]) -> Wisdom:
    """Return a table to ship for a device, with current sources: the rows that may be selected within some limits.

    A row is dropped if a faster row of the same solver has no more workspace and the same accuracy.
    """
    table = Wisdom({device: wisdom.devices[device]}, {device: wisdom.roofs.get(device, {})})
    for (key, _, _), rows in wisdom.rows.items():
        if key == device:
            current = [row for row in rows if row.state == DECIDED and limits.is_current(row)]
            front = _front(sorted(current, key=lambda row: row.rank))
            table.add(row._replace(sources=sources_of(row.candidate)) for row in front)
    return table


def _front(ranked: Sequence[Row]) -> list[Row]:
    kept: list[Row] = []
    for row in ranked:
        solver = row.candidate.partition("(")[0]
        if not any(
            better.workspace <= row.workspace
            and better.accuracy == row.accuracy
            and better.candidate.partition("(")[0] == solver
            for better in kept
        ):
            kept.append(row)
    return kept


class Difference(NamedTuple):
    """A problem whose best candidate differs: candidates and their times in seconds; None where there is none."""

    device: str
    problem: str
    weights: str
    first: str | None
    second: str | None
    first_seconds: float | None
    second_seconds: float | None


def diff(first: Wisdom, second: Wisdom) -> list[Difference]:
    """Return the problems whose best candidates differ, or that only one of the two has."""
    differences = []
    for key in sorted(first.rows.keys() | second.rows.keys()):
        a, b = (_best(wisdom.rows.get(key, [])) for wisdom in (first, second))
        if (a and a.candidate) != (b and b.candidate):
            names = (a and a.candidate, b and b.candidate)
            differences.append(Difference(*key, *names, a and a.median, b and b.median))
    return differences


def _best(rows: Iterable[Row]) -> Row | None:
    return min((row for row in rows if row.is_timed), key=lambda row: row.rank, default=None)
