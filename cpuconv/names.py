"""Names that a model does not use yet, found without a search, and text that does not grow with what it is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_HINT = 128  # characters of a hint that a new name repeats


class Names:
    """The names that are taken, and new ones: the n-th of one hint takes no longer than the first.

    Parameters
    ----------
    taken : iterable of str
        Names that a model uses.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def add(self, names: Iterable[str]) -> None:
        """Take names."""
        self._taken.update(names)

    def fresh(self, hint: str) -> str:
        """The hint or the beginning of a long one, with a number if that is taken; the name is taken from now on."""
        name = hint = hint[:MOST_HINT]
        count = self._counts.get(hint, 0)
        while name in self._taken:
            count += 1
            name = f"{hint}.{count}"
        self._counts[hint] = count
        self._taken.add(name)
        return name


def shortened(text: str, most: int) -> str:
    """A text of at most `most` characters: long words lose their middle, and then the text does."""
    if len(text) <= most:
        return text
    text = re.sub(rf"\S{{{MOST_HINT},}}", lambda word: _ends(word[0], MOST_HINT), text)
    return _ends(text, most)


def _ends(text: str, most: int) -> str:
    """The beginning and the end of a text that is longer."""
    end = most // 4
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"
