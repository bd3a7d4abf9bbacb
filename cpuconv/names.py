"""Unique names for new values of a model, and shortened text of bounded length."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_HINT = 128  # characters of a hint that become part of a new name


class Names:
    """Used names, and new ones in constant time: the n-th name for a hint takes no longer than the first.

    Parameters
    ----------
    taken : iterable of str
        Names that a model uses.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def add(self, names: Iterable[str]) -> None:
        """Mark names as used."""
        self._taken.update(names)

    def fresh(self, hint: str) -> str:
        """Return the hint, cut to `MAX_HINT`, with a number if it is used already; mark the result as used."""
        name = hint = hint[:MAX_HINT]
        count = self._counts.get(hint, 0)
        while name in self._taken:
            count += 1
            name = f"{hint}.{count}"
        self._counts[hint] = count
        self._taken.add(name)
        return name


def shortened(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters: cut the middle of long words first, then of the text."""
    if len(text) <= most:
        return text
    text = re.sub(rf"\S{{{MAX_HINT},}}", lambda word: _ends(word[0], MAX_HINT), text)
    return _ends(text, most)


def _ends(text: str, most: int) -> str:
    """Cut the middle of a text that is longer than `most`."""
    end = most // 4
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"
