"""Traits of operators with more than two values; each is ordered, so that a value includes what lower ones state."""

from __future__ import annotations

from enum import IntEnum


class Movement(IntEnum):
    """How the output is made of elements of the first input, without computing."""

    NONE = 0  # it is not, or elements may be copied several times
    PART = 1  # of some elements, each once
    ALL = 2  # of all elements, each once
    IN_ORDER = 3  # of all elements in the same order: only sizes change


class Int8(IntEnum):
    """How an operator between int8 layers of a network computes."""

    NEVER = 0  # in float32
    RESCALED = 1  # int8 with another scale than its inputs have, where that is fastest
    SAME_SCALE = 2  # int8 with the scale of its inputs: results are within their range
    MOVED = 3  # it commutes with every nondecreasing function, and supports int8: conversions can be moved across it


class Sign(IntEnum):
    """What is known of the sign of the first output; NaN aside."""

    UNKNOWN = 0
    KEPT = 1  # never negative if no data input is
    NONNEGATIVE = 2  # never negative
