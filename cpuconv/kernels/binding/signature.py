"""Signatures of operators' kernels: element types and shapes of operands and results, as one text.

``x: uint8|int8 (N C P...), table: uint8|int8 (256) -> y: =table (N C P...)`` names operands in order, then results:

============  ==========================================================================================================
`x`           a required operand; `x?`: optional; `x*`: any number, last in order
`uint8|int8`  element types; `any`; `=x`: the type of operand `x`; `known`: any type, with elements that are known
              before the network runs; `number`: the same, of one element
`(N C P...)`  sizes of the axes: a letter is the same size everywhere, a letter with dots the same sequence of sizes,
              `256` that size, `4DH` the product of 4 and the sizes D and H; without parentheses: any shape
`~(P...)`     a shape that broadcasts to that one
`;`           separates alternative forms, one of which must match
============  ==========================================================================================================
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpuconv.elements import OF_DTYPE

_OPERAND = re.compile(r"(\w+)([?*]?): (\S+)(?: (~?)\((.*)\))?")
_PRODUCT = re.compile(r"(\d*)([A-Z]*)")
_DOTS = "..."
_DTYPES = {dtype.name: dtype for dtype in (*OF_DTYPE, np.dtype(bool))}
_WORDS = {"any": "of any type", "known": "constant", "number": "one constant number"}

Sizes = dict[str, Any]  # a size by its letter, a sequence of sizes by its letter with dots


class Shape(NamedTuple):
    """Constraint on the axes of an operand.

    Attributes
    ----------
    words : tuple[str, ...]
    dots : int
        Index of the word that stands for a sequence of sizes; -1: none.
    follows : bool
        Whether sizes depend on those of others: numbers, products, and shapes that broadcast.
    broadcasts : bool
        Whether any shape that broadcasts to this one matches.
    """

    words: tuple[str, ...]
    dots: int
    follows: bool
    broadcasts: bool


class Operand(NamedTuple):
    """Constraint on an operand or a result.

    Attributes
    ----------
    name : str
    often : str
        "": one; "?": one or none; "*": any number.
    types : tuple[str, ...]
        Alternative type words.
    dtypes : frozenset of numpy.dtype
        The words that are types.
    shape : Shape or None
        None: any.
    """

    name: str
    often: str
    types: tuple[str, ...]
    dtypes: frozenset[np.dtype]
    shape: Shape | None


class Form(NamedTuple):
    """One alternative of a signature: operands and results."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


@functools.lru_cache(maxsize=256)
def forms(text: str) -> tuple[Form, ...]:
    """Parse a signature.

    Raises
    ------
    ValueError
        The text is not a signature.
    """
    sides = ([tuple(map(_operand, side.split(", "))) for side in form.split(" -> ")] for form in text.split("; "))
    return tuple(Form(inputs, outputs) for inputs, outputs in sides)


def _operand(text: str) -> Operand:
    found = _OPERAND.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no operand of a signature")
    name, often, types, broadcasts, shape = found.groups()
    words = tuple(types.split("|"))
    dtypes = frozenset(_DTYPES[word] for word in words if word in _DTYPES)
    return Operand(
        name, often, words, dtypes, None if shape is None else _shape(tuple(shape.split()), bool(broadcasts))
    )


def _shape(words: tuple[str, ...], broadcasts: bool) -> Shape:
    dots = next((at for at, word in enumerate(words) if word.endswith(_DOTS)), -1)
    follows = broadcasts or any(not _is_letter(word) for word in words)
    return Shape(words, dots, follows, broadcasts)


def _is_letter(word: str) -> bool:
    return len(word.removesuffix(_DOTS)) == 1 and word[0].isalpha()


def mismatch(text: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str | None:
    """Explain why operands and results do not match a signature: the operand, what it must be, and what it is.

    Parameters
    ----------
    text : str
    inputs, outputs : sequence
        Values; None: left out.

    Returns
    -------
    str or None
        The mismatch of the last form; None if a form matches.
    """
    reason = None
    for form in forms(text):
        reason = _mismatch(form, inputs, outputs)
        if reason is None:
            return None
    return reason


def _mismatch(form: Form, inputs: Sequence[Any], outputs: Sequence[Any]) -> str | None:
    pairs: list[tuple[Operand, Any]] = []
    for stated, given in zip(form, (inputs, outputs), strict=True):
        most = max(len(stated), len(given)) if stated[-1].often == "*" else len(stated)
        if any(tensor is not None for tensor in given[most:]):
            return f"there must be no more than {most} {'operands' if stated is form.inputs else 'results'}"
        for at in range(most):
            operand, tensor = stated[min(at, len(stated) - 1)], given[at] if at < len(given) else None
            if tensor is not None:
                pairs.append((operand, tensor))
            elif not operand.often and stated is form.inputs:
                return f"{operand.name!r} must be given"
    sizes: Sizes = {}
    for operand, tensor in reversed(pairs):  # results first: the shape rule derived them from the operands
        if operand.shape is not None and not (operand.shape.broadcasts or _bind(operand.shape, tensor.shape, sizes)):
            return _reason(operand, tensor, pairs, sizes)
    for operand, tensor in pairs:
        if operand.shape is not None and operand.shape.follows and not _follows(operand.shape, tensor.shape, sizes):
            return _reason(operand, tensor, pairs, sizes)
        if tensor.dtype not in operand.dtypes and not _holds(operand, tensor, pairs):
            return _reason(operand, tensor, pairs, sizes)
    return None


def _holds(operand: Operand, tensor: Any, pairs: Sequence[tuple[Operand, Any]]) -> bool:
    """Whether a tensor matches a type word that is not a plain type: "any", "known", "number" or "=name"."""
    for word in operand.types:
        if word == "any" or (
            tensor.array is not None and (word == "known" or word == "number" and tensor.array.size == 1)
        ):
            return True
        if word.startswith("=") and tensor.dtype == _types(pairs).get(word[1:]):
            return True
    return False


def _types(pairs: Sequence[tuple[Operand, Any]]) -> dict[str, Any]:
    """The type of each operand by name; of a repeated operand, the first one's."""
    return {operand.name: tensor.dtype for operand, tensor in reversed(pairs)}


def _bind(stated: Shape, shape: Sequence[Any], sizes: Sizes) -> bool:
    """Record the sizes that letters stand for; False if the rank differs or a letter would stand for two sizes."""
    words, dots = stated.words, stated.dots
    parts: list[Any] = list(shape)
    if dots >= 0 and len(parts) >= len(words) - 1:
        end = len(parts) - (len(words) - 1 - dots)
        parts[dots:end] = [tuple(parts[dots:end])]
    if len(parts) != len(words):
        return False
    for word, part in zip(words, parts, strict=True):
        if len(word) == 1 and word.isalpha() or word.endswith(_DOTS):
            known = sizes.setdefault(word, part)
            if known is not part and known != part:
                return False
    return True


def _follows(stated: Shape, shape: Sequence[Any], sizes: Sizes) -> bool:
    """Whether a shape equals the constraint with known sizes inserted, or broadcasts to it."""
    wanted = list(_axes(stated.words, sizes))
    if not stated.broadcasts:
        return list(shape) == wanted
    behind = wanted[len(wanted) - len(shape) :]
    return len(shape) <= len(wanted) and all(size in (1, most) for size, most in zip(shape, behind, strict=True))


def _axes(words: Sequence[str], sizes: Sizes) -> Iterator[Any]:
    """The size of each axis if it is known; else the word."""
    for word in words:
        if word.endswith(_DOTS):
            yield from sizes.get(word, (word,))
        elif word in sizes:
            yield sizes[word]
        else:
            number, letters = _PRODUCT.fullmatch(word).groups()  # type: ignore[union-attr]  # any text matches
            known = all(letter in sizes for letter in letters)
            yield math.prod((sizes[letter] for letter in letters), start=int(number or 1)) if known else word


def _reason(operand: Operand, tensor: Any, pairs: Sequence[tuple[Operand, Any]], sizes: Sizes) -> str:
    types = _types(pairs)
    words = [
        str(types.get(word[1:], word)) if word.startswith("=") else _WORDS.get(word, word) for word in operand.types
    ]
    text = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    if operand.shape is not None:
        axes = ",".join(map(str, _axes(operand.shape.words, sizes)))
        text += f" {'that broadcasts to' if operand.shape.broadcasts else 'of shape'} [{axes}]"
    return f"{operand.name!r} must be {text}, not {tensor}"
