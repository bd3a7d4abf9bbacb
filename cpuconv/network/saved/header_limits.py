"""Limits on the header of a saved model, checked before it is decoded and before a graph is built.

A few bytes of JSON may become objects of hundreds of bytes, such as the list `[]`. The memory for decoding is estimated
from the characters that begin objects, outside strings. Headers of saved models become 6 to 11 times as large when they
are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from baselib.text import JSON_BYTES
from cpuconv.errors import SourceError
from cpuconv.memory.free_memory import check_bytes
from cpuconv.protos.limits import MAX_DEPTH, MAX_NODES

MAX_HEADER_BYTES = 128 << 20  # maximum size in bytes: twice that of a program with 100,000 nodes
MAX_LEVELS = 11 + 6 * MAX_DEPTH  # maximum nesting of brackets: each nested graph takes six levels
_TIMES = 16  # maximum ratio of decoded to encoded size
_SMALL = 1 << 16  # bytes that are allowed for any header

_TAKES = np.zeros(256, np.uint8)
for _character, _size in JSON_BYTES.items():
    _TAKES[ord(_character)] = _size
_STEPS = np.zeros(256, np.int8)  # change of the nesting level by character
_STEPS[[*b"[{"]], _STEPS[[*b"]}"]] = 1, -1


def check_text(text: bytes, name: str, most_levels: int = MAX_LEVELS, piece_bytes: int = 1 << 16) -> None:
    """Check that a header's decoded size and nesting are within their limits.

    Parameters
    ----------
    text : bytes
    name : str
        Name of the file.
    most_levels : int
        Maximum nesting of brackets.
    piece_bytes : int
        Bytes of the text that are processed per step.

    Raises
    ------
    SourceError
        A limit is exceeded; the message begins with the file's name.
    """
    most = _SMALL + _TIMES * len(text)
    if b"\\" in text:  # an escaped quote does not end a string
        text = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    level = taken = 0
    within = False  # whether inside a string
    for start in range(0, len(text), piece_bytes):
        piece = np.frombuffer(text, np.uint8, min(piece_bytes, len(text) - start), start)
        texts = np.logical_xor.accumulate(piece == ord('"')) ^ within
        within = bool(texts[-1])
        taken += int(np.where(texts & (piece != ord('"')), 0, _TAKES[piece]).sum())
        levels = level + np.where(texts, 0, _STEPS[piece]).cumsum(dtype=np.int64)
        level = int(levels[-1])
        if levels.max() > most_levels:
            raise SourceError(f"{name} is damaged: its header nests deeper than {most_levels} levels.")
    if taken > most:
        raise SourceError(f"{name} is damaged: its header would take {taken} bytes, and is no larger than {len(text)}.")
    check_bytes(taken, f"{name}: its header")


def check_nodes(graph: Any, most: int | None = None) -> None:
    """Check the number and nesting of nodes in the plain values of a graph.

    Raises
    ------
    SourceError
        There are more than `most` nodes, by default `MAX_NODES`, or they nest deeper than `MAX_DEPTH`.
    """
    count, level, most = 0, [graph], most or MAX_NODES
    for _ in range(MAX_DEPTH + 1):
        nodes = [node for each in level for node in _items(each, "nodes")]
        count += len(nodes)
        if count > most:
            raise SourceError(f"a graph must have no more than {most:,} nodes")
        level = [inner for node in nodes for inner in _graphs_in(node)]
        if not level:
            return
    raise SourceError(f"nodes must not nest deeper than {MAX_DEPTH} levels")


def _items(data: Any, name: str) -> list[Any]:
    found = data.get(name) if isinstance(data, Mapping) else None
    return found if isinstance(found, list) else []


def _graphs_in(data: Any) -> Iterator[Any]:
    """Yield the graphs in the plain values of a node."""
    if isinstance(data, dict):
        for kind, each in data.items():
            if kind == "graph":
                yield each
            else:
                yield from _graphs_in(each)
    elif isinstance(data, list):
        for each in data:
            yield from _graphs_in(each)
