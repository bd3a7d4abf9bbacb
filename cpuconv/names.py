"""Names that a model does not use yet, found without a search, and text that does not grow with what it is made of."""

from __future__ import annotations

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
        """A new name that begins with the hint, or with the beginning of a long one; it is taken from now on."""
        hint = hint[:MOST_HINT]
        count = self._counts.get(hint, 0)
        while (name := f"{hint}.{count}") in self._taken:
            count += 1
        self._counts[hint] = count + 1
        self._taken.add(name)
        return name


def shortened(text: str, most: int) -> str:
    """A text of at most `most` characters: of a longer one the beginning and the end."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 3]} … {text[-end:]}"
