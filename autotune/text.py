"""Figures as text, and what text of JSON takes when it is decoded."""

from __future__ import annotations

import math
from collections.abc import Iterable

JSON_BYTES = {"{": 100, ":": 60, "[": 64, ",": 10, '"': 25}
"""Bytes that decoded JSON takes, in CPython, for what each character begins; a text has two quotes."""


def decoded_bytes(text: bytes) -> int:
    """Estimate of the memory that decoding JSON takes, from above: characters within texts count too."""
    return len(text) + sum(each * text.count(character.encode()) for character, each in JSON_BYTES.items())


def number(value: float | None, format: str, scale: float = 1.0) -> str:
    """`value` times `scale`; empty where unknown."""
    return "" if value is None or math.isnan(value) else f"{value * scale:{format}}"


def size(count: int | None) -> str:
    """A count of bytes in the unit that leaves one to three digits before the point; empty where unknown."""
    if not count:
        return "" if count is None else "0"
    power = min(3, int(math.log2(count)) // 10)
    return f"{count / (1 << 10 * power):.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def count_of(count: int, what: str) -> str:
    """ "1 thread", "2 threads"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def joined(*parts: str | None) -> str:
    """The parts that there are, with a point between them."""
    return " · ".join(filter(None, parts))


def suggested(given: str, known: Iterable[str]) -> str:
    """ " (did you mean …?)" with the most similar of the known names; "" where none is similar."""
    import difflib  # which most starts do not need

    similar = difflib.get_close_matches(given, list(known), 1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""
