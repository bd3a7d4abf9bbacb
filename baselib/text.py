"""Numbers as text, and the memory for decoded JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable

JSON_BYTES = {"{": 100, ":": 60, "[": 64, ",": 10, '"': 25}
"""Estimated bytes of decoded JSON in CPython, for the object that each character begins; a text has two quotes."""


def decoded_bytes(text: bytes) -> int:
    """Return an upper estimate of the memory of decoded JSON, in bytes: characters in texts count too."""
    return len(text) + sum(each * text.count(character.encode()) for character, each in JSON_BYTES.items())


def number(value: float | None, format: str, scale: float = 1.0) -> str:
    """Format `value` times `scale`; empty if unknown."""
    return "" if value is None or math.isnan(value) else f"{value * scale:{format}}"


def size(count: int | None) -> str:
    """Format a size in bytes, in the unit with one to three digits before the point; empty if unknown."""
    if not count:
        return "" if count is None else "0"
    power = min(3, int(math.log2(count)) // 10)
    return f"{count / (1 << 10 * power):.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def count_of(count: int, what: str) -> str:
    """Format a count with its noun: "1 thread", "2 threads"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def joined(*parts: str | None) -> str:
    """Join the non-empty parts by a middle dot."""
    return " · ".join(filter(None, parts))


def suggested(given: str, known: Iterable[str]) -> str:
    """Return " (did you mean …?)" with the most similar known name; "" if none is similar."""
    import difflib  # not needed by most starts

    similar = difflib.get_close_matches(given, list(known), 1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""
