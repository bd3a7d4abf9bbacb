"""Indices that kernels find out of bounds: where they report one, and the message.

A kernel that finds one writes nothing at its place, reports it, and goes on. After the run, or before the next node
that a reference computes, the report becomes an error.
"""

from __future__ import annotations

import ctypes

import numpy as np

FAILURE = "failure"  # base of the report
WORDS = 3  # int64 of the report: address of the node's name, 0 if there is no failure; the index; the size of its axis


def name_words(name: str) -> np.ndarray:
    """A name as int64 words: its length in bytes, then UTF-8."""
    text = name.encode()
    return np.array([len(text), *np.frombuffer(text + bytes(-len(text) % 8), np.int64)], np.int64)


def taken_message(report: memoryview) -> str:
    """The message of a report, which is cleared."""
    start, index, size = report
    report[0] = 0
    name = ctypes.string_at(start + 8, ctypes.c_int64.from_address(start).value).decode()
    return f"{name} cannot take inputs: index {index} is out of bounds for an axis of size {size}"
