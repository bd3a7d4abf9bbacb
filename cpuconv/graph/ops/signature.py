"""What the kernels of an operator take and give: element types and shapes of its operands and results, as one text.

``x: uint8|int8 (N C P...), table: uint8|int8 (256) -> y: =table (N C P...)`` names operands in order, then results:

============  ==========================================================================================================
`x`           an operand that must be there; `x?`: may be left out; `x*`: any number of them, the last ones
`uint8|int8`  the element types; `any`; `=x`: that of the operand `x`; `known`: any, its elements being known before the
              network runs; `number`: the same, of one element
`(N C P...)`  the sizes of the axes: a letter is the same size everywhere, a letter with dots the same row of sizes,
              `256` that size, `4DH` the product of 4 and the sizes D and H; without parentheses: any shape
`~(P...)`     a shape that broadcasts to that one
`;`           between forms, one of which must fit
============  ==========================================================================================================
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_OPERAND = re.compile(r"(\w+)([?*]?): (\S+)(?: (~?)\((.*)\))?")
_PRODUCT = re.compile(r"(\d*)([A-Z]*)")
_DOTS = "..."
_WORDS = {"any": "of any type", "known": "constant", "number": "one constant number"}

Sizes = dict[str, Any]  # a size by its letter, a row of sizes by its letter with dots


class Operand(NamedTuple):
    """What an operand or a result must be.

    Attributes
    ----------
    name : str
    often : str
        "": one; "?": one or none; "*": any number.
    types : tuple[str, ...]
        Words of which one must hold.
    shape : tuple[str, ...] or None
        Words of the axes; None: any shape.
    broadcasts : bool
        Whether any shape will do that broadcasts to `shape`.
    """

    name: str
    often: str
    types: tuple[str, ...]
    shape: tuple[str, ...] | None
    broadcasts: bool


class Form(NamedTuple):
    """Operands and results that belong together."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


@functools.lru_cache(maxsize=256)
def forms(text: str) -> tuple[Form, ...]:
    """The forms that a signature states.

    Raises
    ------
    ValueError
        It is no signature.
    """
    return tuple(
        Form(*(tuple(map(_operand, side.split(", "))) for side in form.split(" -> "))) for form in text.split("; ")
    )


def _operand(text: str) -> Operand:
    found = _OPERAND.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no operand of a signature")
    name, often, types, broadcasts, shape = found.groups()
    return Operand(
        name, often, tuple(types.split("|")), None if shape is None else tuple(shape.split()), bool(broadcasts)
    )


def mismatch(text: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str | None:
    """Why operands and results are not those of a signature: the operand, what it must be, and what it is.

    Parameters
    ----------
    text : str
    inputs, outputs : sequence
        Values; None: left out.

    Returns
    -------
    str or None
        Of the last form that does not fit; None where one fits.
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
    types = {operand.name: tensor.dtype for operand, tensor in reversed(pairs)}
    sizes: Sizes = {}
    for operand, tensor in reversed(pairs):  # results first: the rule has made them of the operands that it reads
        if operand.shape is not None and not operand.broadcasts:
            _bind(operand.shape, tensor.shape, sizes)
    for operand, tensor in pairs:
        if not any(_holds(word, tensor, types) for word in operand.types) or not _fits(operand, tensor.shape, sizes):
            return f"{operand.name!r} must be {_described(operand, types, sizes)}, not {tensor}"
    return None


def _holds(word: str, tensor: Any, types: Mapping[str, Any]) -> bool:
    """Whether a tensor is of a type."""
    if word in ("known", "number"):
        return tensor.array is not None and (word == "known" or tensor.array.size == 1)
    if word.startswith("="):
        return tensor.dtype == types.get(word[1:])
    return word in ("any", getattr(tensor.dtype, "name", None))


def _bind(words: Sequence[str], shape: Sequence[Any], sizes: Sizes) -> None:
    """Note the sizes that single letters, and those with dots, stand for; of a shape of another rank none."""
    dots = next((at for at, word in enumerate(words) if word.endswith(_DOTS)), None)
    parts: list[Any] = list(shape)
    if dots is not None and len(shape) >= len(words) - 1:
        end = len(shape) - (len(words) - 1 - dots)
        parts[dots:end] = [tuple(shape[dots:end])]
    if len(parts) == len(words):
        for word, part in zip(words, parts, strict=True):
            if word.endswith(_DOTS) or len(word) == 1 and word.isalpha():
                sizes.setdefault(word, part)


def _axes(words: Sequence[str], sizes: Sizes) -> Iterator[Any]:
    """The size of each axis, as far as it is known; else the word."""
    for word in words:
        if word.endswith(_DOTS):
            yield from sizes.get(word, (word,))
        elif word in sizes:
            yield sizes[word]
        else:
            number, letters = _PRODUCT.fullmatch(word).groups()  # type: ignore[union-attr]  # any text matches
            known = all(letter in sizes for letter in letters)
            yield math.prod((sizes[letter] for letter in letters), start=int(number or 1)) if known else word


def _fits(operand: Operand, shape: Sequence[Any], sizes: Sizes) -> bool:
    if operand.shape is None:
        return True
    stated = tuple(_axes(operand.shape, sizes))
    if not operand.broadcasts:
        return tuple(shape) == stated
    behind = stated[len(stated) - len(shape) :]
    return len(shape) <= len(stated) and all(size in (1, most) for size, most in zip(shape, behind, strict=True))


def _described(operand: Operand, types: Mapping[str, Any], sizes: Sizes) -> str:
    words = [
        str(types.get(word[1:], word)) if word.startswith("=") else _WORDS.get(word, word) for word in operand.types
    ]
    text = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    if operand.shape is None:
        return text
    shape = f"[{','.join(map(str, _axes(operand.shape, sizes)))}]"
    return f"{text} {'that broadcasts to' if operand.broadcasts else 'of shape'} {shape}"
