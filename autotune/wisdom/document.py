"""Wisdom: the content of stores as a JSON file for archiving and exchange (`docs/wisdom.md` has the schema).

Files are untrusted input: a file is accepted or refused as a whole. Every value is checked; nothing is executed,
imported or unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from autotune.machine.device import Device
from autotune.machine.roofline import KeptRoofs, sound_roofs
from autotune.store.rows import REALS, TIMED, WEIGHTS, Finished, Row, Use
from autotune.workload import ADMITS
from baselib.files import read_regular
from baselib.text import decoded_bytes

FORMAT = "autotune-wisdom"
VERSION = 1
MAX_BYTES = 32 << 20  # max. file size: 150 times a table that the package ships
MAX_ROWS = 500_000
MAX_TEXT = 2048
MAX_ROOFS = 256
MAX_SECONDS = 1e6
_TIMES, _SMALL = 8, 1 << 16  # limit of decoded memory: factor of the text (usually 3), plus bytes
MAX_NUMBER = 1 << 53  # largest integer that all JSON readers represent exactly

Problem = tuple[str, str, str]  # device, problem key, weights


class WisdomError(ValueError):
    """A file is not wisdom, or not trustworthy; the message gives the reason."""


@dataclass
class Wisdom:
    """Rows with their devices, the finished problems, and the networks that use them."""

    devices: dict[str, Device] = field(default_factory=dict)
    roofs: dict[str, KeptRoofs] = field(default_factory=dict)
    rows: dict[Problem, list[Row]] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows to their problems."""
        for row in rows:
            self.rows.setdefault((row.device, row.problem, row.weights), []).append(row)

    def count(self) -> int:
        """Return the number of rows."""
        return sum(map(len, self.rows.values()))

    def __iter__(self) -> Iterator[Row]:
        return (row for rows in self.rows.values() for row in rows)


# -- validation rules: the expected value in words, and a predicate

Rule = tuple[str, Callable[[Any], bool]]


def _is_number(value: Any, least: float, most: float) -> bool:
    return type(value) in (int, float) and least <= value <= most


def _text(least: int = 0) -> Rule:
    return (
        f"a printable text of {least} to {MAX_TEXT} characters",
        lambda value: isinstance(value, str) and least <= len(value) <= MAX_TEXT and value.isprintable(),
    )


def _one_of(names: Sequence[str]) -> Rule:
    return f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names


def _count(most: int = MAX_NUMBER) -> Rule:
    return f"an integer from 0 to {most}", lambda value: type(value) is int and 0 <= value <= most


def _real(most: float, *, unknown: bool = True) -> Rule:
    what = f"a number from 0 to {most:g}{' or null' if unknown else ''}"
    return what, lambda value: (value is None and unknown) or _is_number(value, 0, most)


ROW_RULES: dict[str, Rule] = {
    "problem": _text(1),
    "candidate": _text(1),
    "sources": _text(1),
    "state": _one_of((*TIMED, "rejected")),
    "reason": _text(),
    "median": _real(MAX_SECONDS),
    "spread": _real(MAX_SECONDS),
    "count": _count(),
    "score": _real(MAX_SECONDS),
    "error": _real(1e300),
    "error_limit": _real(1e300),
    "workspace": _count(),
    "accuracy": _one_of(tuple(ADMITS)),
    "bound": _real(MAX_SECONDS),
    "estimate": _real(MAX_SECONDS),
    "created": _real(1e12, unknown=False),
    "weights": _one_of(WEIGHTS),
    "threads_fraction": _real(1.0),
    "kernels": _text(),
}
FINISHED_RULES: dict[str, Rule] = {
    "problem": _text(1),
    "weights": _one_of(WEIGHTS),
    "effort": _text(1),
    "sources": _text(1),
    "threads": _count(),
    "created": _real(1e12, unknown=False),
}
USE_RULES: dict[str, Rule] = {
    "network": _text(),
    "threads": _count(),
    "layouts": _text(),
    "label": _text(),
    "problem": _text(1),
    "count": _count(),
    "flops": _real(1e24, unknown=False),
}
DEVICE_RULES: dict[str, Rule] = {
    **{name: _text() for name in ("vendor", "model", "family", "number", "stepping", "machine", "isa", "cpu_name")},
    "features": (
        "a printable text",
        lambda value: isinstance(value, str) and len(value) < 1 << 16 and value.isprintable(),
    ),
    "caches": (
        "levels with their bytes",
        lambda value: (
            isinstance(value, dict)
            and len(value) <= 8
            and all(len(level) <= 8 and _count()[1](size) for level, size in value.items())
        ),
    ),
    "cores": _count(),
    **{name: _text() for name in ("os", "numpy", "numba", "llvm")},
    "affinity": _count(),
    "quota": _real(1e6),
    "release": _text(),
}
TOP = ("format", "version", "columns", "devices", "uses", "sha256")
DEVICE = ("fields", "roofs", "rows", "finished")
COLUMNS = {"rows": list(ROW_RULES), "finished": list(FINISHED_RULES), "uses": list(USE_RULES)}
FORMER_COLUMNS = {**COLUMNS, "rows": [name for name in ROW_RULES if name != "kernels"]}  # of files before 2026-11-28
assert {"device", *ROW_RULES} == set(Row._fields) and set(DEVICE_RULES) == {column.name for column in fields(Device)}


# -- reading


def read(path: Path, max_bytes: int = MAX_BYTES) -> Wisdom:
    """Read a file of wisdom.

    Raises
    ------
    WisdomError
        The file is refused; the message gives the reason.
    OSError
        The file cannot be read.
    """
    try:
        return parse(read_regular(path, max_bytes))
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise WisdomError(f"{path} is refused: it is larger than {max_bytes >> 20} MiB") from None
        if error.errno in (errno.EINVAL, errno.EISDIR):
            raise WisdomError(f"{path} is refused: it is not a regular file") from None
        raise
    except WisdomError as error:
        raise WisdomError(f"{path} is refused: {error}") from None


def parse(content: bytes, max_rows: int = MAX_ROWS) -> Wisdom:
    """Parse a file's content, with at most `max_rows` rows per table; raises WisdomError."""
    if len(content) > MAX_BYTES:
        raise WisdomError(f"it is larger than {MAX_BYTES >> 20} MiB")
    if (taken := decoded_bytes(content)) > _SMALL + _TIMES * len(content):
        raise WisdomError(
            f"it is not a wisdom file (decoding its {len(content)} bytes of JSON would take {taken} bytes of memory)"
        )
    try:
        document = json.loads(content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WisdomError(f"it is not valid JSON ({error})") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise WisdomError("its format is not " + FORMAT)
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise WisdomError(f"its version must be {VERSION}, not {document.get('version')!r:.20}")
    _keys(document, TOP, "the file")
    if document["sha256"] != digest(document):
        raise WisdomError("it is damaged: its sha256 does not match")
    if document["columns"] not in (COLUMNS, FORMER_COLUMNS):
        raise WisdomError(f"columns must be those of version {VERSION}")
    return _wisdom(document, max_rows)


def _wisdom(document: dict[str, Any], max_rows: int) -> Wisdom:
    wisdom = Wisdom()
    left = max_rows
    columns = document["columns"]["rows"]
    rules = {name: ROW_RULES[name] for name in columns}
    for at, entry in enumerate(_list(document["devices"], "devices", 4096)):
        where = f"devices[{at}]"
        _keys(entry, DEVICE, where)
        device = device_of(entry["fields"], f"{where}.fields")
        if device.key in wisdom.devices:
            raise WisdomError(f"{where} duplicates an earlier device")
        wisdom.devices[device.key] = device
        wisdom.roofs[device.key] = _roofs(entry["roofs"], f"{where}.roofs")
        rows = _rows(device.key, columns, _table(entry["rows"], rules, f"{where}.rows", left))
        for row in rows:
            if not row.is_sound():
                raise WisdomError(
                    f"{where}.rows: {row.candidate!r:.60} must have a median and a score, as it is {row.state}"
                )
        wisdom.add(rows)
        left -= len(rows)
        finished = _table(entry["finished"], FINISHED_RULES, f"{where}.finished", max_rows)
        wisdom.finished += [Finished(device.key, **dict(zip(FINISHED_RULES, each, strict=True))) for each in finished]
    uses = _table(document["uses"], USE_RULES, "uses", max_rows)
    wisdom.uses = [Use(**dict(zip(USE_RULES, each, strict=True))) for each in uses]
    return wisdom


def _rows(device: str, names: Sequence[str], records: list[list[Any]]) -> list[Row]:
    """Make rows from records, column by column: each process that looks up a tuned problem reads a table."""
    if not records:
        return []
    columns: dict[str, Iterable[Any]] = dict(zip(names, zip(*records, strict=True), strict=True))
    for name in REALS & columns.keys():
        columns[name] = [math.nan if value is None else float(value) for value in columns[name]]
    columns["device"] = [device] * len(records)
    columns.setdefault("kernels", [""] * len(records))  # missing in a former file
    return [*map(Row._make, zip(*(columns[name] for name in Row._fields), strict=True))]


def device_of(fields: Any, where: str) -> Device:
    """Make a device from its decoded fields; raises WisdomError that names `where`."""
    _keys(fields, tuple(DEVICE_RULES), where)
    for name, (must_be, is_that) in DEVICE_RULES.items():
        if not is_that(fields[name]):
            raise WisdomError(f"{where}.{name} must be {must_be}, not {fields[name]!r:.60}")
    return Device(**{**fields, "caches": tuple(fields["caches"].items())})


def _roofs(roofs: Any, where: str) -> KeptRoofs:
    sound = isinstance(roofs, dict) and len(roofs) <= MAX_ROOFS and sound_roofs(roofs) == roofs
    is_name = _text(1)[1]
    if not sound or not all(len(figures) <= MAX_ROOFS and all(map(is_name, figures)) for figures in roofs.values()):
        raise WisdomError(f"{where} must be numbers by name, by the number of threads")
    return roofs


def _table(records: Any, rules: dict[str, Rule], where: str, most: int) -> list[list[Any]]:
    """Return a table's records, lists of values, after checking them by the rules; repeated values are checked once."""
    records = _list(records, where, most)
    for at, values in enumerate(records):
        if not isinstance(values, list) or len(values) != len(rules):
            raise WisdomError(f"{where}[{at}] must be a list of {len(rules)} values")
    columns = zip(*records, strict=True)
    wrong = [
        (next(at for at, each in enumerate(column) if each is value), name, must_be, value)
        for column, (name, (must_be, is_that)) in zip(columns, rules.items(), strict=False)
        for value in _each_once(column)
        if not is_that(value)
    ]
    for at, name, must_be, value in sorted(wrong, key=lambda found: found[0])[:1]:
        raise WisdomError(f"{where}[{at}].{name} must be {must_be}, not {value!r:.60}")
    return records


def _each_once(column: Sequence[Any]) -> Iterable[Any]:
    """Return the values of a column without duplicates of the same type."""
    try:
        return (value for _, value in dict.fromkeys(zip(map(type, column), column, strict=True)))
    except TypeError:  # a list or an object is not hashable
        return column


def _list(value: Any, where: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise WisdomError(f"{where} must be a list, of {most} at most")
    return value


def _keys(value: Any, names: Sequence[str], where: str) -> None:
    if not isinstance(value, dict) or set(value) != set(names):
        raise WisdomError(f"{where} must be an object with {', '.join(names)}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("a name occurs twice")
    return names


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


# -- writing


def render(wisdom: Wisdom) -> str:
    """Return the file's text: deterministic, one line per row."""

    def plain(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def table(records: Iterable[Any], rules: dict[str, Rule]) -> list[list[Any]]:
        return [[plain(getattr(record, name)) for name in rules] for record in records]

    document: dict[str, Any] = {"format": FORMAT, "version": VERSION, "columns": COLUMNS, "devices": []}
    for key, device in sorted(wisdom.devices.items()):
        rows = sorted(
            (row for row in wisdom if row.device == key), key=lambda row: (row.problem, row.weights, row.rank)
        )
        finished = sorted(
            (record for record in wisdom.finished if record.device == key),
            key=lambda record: (record.problem, record.weights, record.effort),
        )
        fields = {name: value for name, value in device.to_dict().items() if name != "key"}
        document["devices"].append(
            {
                "fields": fields,
                "roofs": wisdom.roofs.get(key, {}),
                "rows": table(rows, ROW_RULES),
                "finished": table(finished, FINISHED_RULES),
            }
        )
    document["uses"] = table(wisdom.uses, USE_RULES)
    document["sha256"] = digest(document)
    return _lines(document)


def digest(document: dict[str, Any]) -> str:
    """Return the hash of all but the hash itself, independent of spacing and order; it detects damage, not malice."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _lines(value: Any, indent: str = "") -> str:
    """Format JSON with one line per list or object of plain values."""
    inner = indent + " "
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list)) or not any(isinstance(item, (dict, list)) for item in items):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(name)}: {_lines(item, inner)}" for name, item in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _lines(item, inner) for item in items) + f"\n{indent}]"
