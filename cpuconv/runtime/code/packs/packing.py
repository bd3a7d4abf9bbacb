"""Writing of packs (`pack_file`): kernels ordered by kind and similarity, equal ones stored once."""

from __future__ import annotations

import hashlib
import itertools
import json
import lzma
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baselib.files import write_whole
from cpuconv.runtime.code.packs import similarity
from cpuconv.runtime.code.packs.pack_file import DIGEST_LETTERS, FILTERS, FORMAT, MAGIC, PREFIX, as_stored, checksum

_BLOCK_BYTES = 1 << 17  # max. uncompressed bytes of a block: larger blocks compress better, and take longer to read

_MIN_SHARED = 100  # min. kernels shared by several parts for an index of their own: reading an index takes 0.1 ms

_Place = tuple[int, int, int]  # block, offset in it, size in bytes
Kernels = Mapping[str, bytes]
"""Kernels by file name (`kernel_files.KernelFile`)."""


def packed(parts: Mapping[str, Kernels]) -> bytes:
    """Return a pack of these parts: the same bytes for the same kernels, whatever their order."""
    bodies = {content: as_stored(content) for kernels in parts.values() for content in kernels.values()}
    kinds = {bodies[content]: _kind(name) for found in parts.values() for name, content in sorted(found.items())}
    ordered = sorted(kinds, key=lambda each: (kinds[each], each))
    groups = (list(group) for _, group in itertools.groupby(ordered, kinds.__getitem__))
    places: dict[bytes, _Place] = {}
    blocks = []
    for number, contents in enumerate(similarity.blocks(groups, _BLOCK_BYTES)):
        start = 0
        for content in contents:
            places[content] = number, start, len(content)
            start += len(content)
        blocks.append(b"".join(contents))
    indexes = _indexes(
        {name: {each: places[bodies[kernel]] for each, kernel in found.items()} for name, found in parts.items()}
    )
    pieces, table, end = [], [], 0
    for content in (*map(_json, indexes.values()), *blocks):
        pieces.append(_compressed(content))
        table.append((end, len(pieces[-1]), len(content), checksum(content)))
        end += len(pieces[-1])
    of_parts = {name: [at for at, sharing in enumerate(indexes) if name in sharing] for name in parts}
    header = _compressed(_json({"parts": of_parts, "pieces": table, "blocks": len(indexes)}))
    prefix = PREFIX.pack(MAGIC, FORMAT, len(header))
    return b"".join([prefix, hashlib.sha256(prefix + header).digest(), header, *pieces])


def write(path: Path, parts: Mapping[str, Kernels]) -> None:
    """Write a pack atomically."""
    write_whole({path: packed(parts)})


def _indexes(parts: Mapping[str, Mapping[str, _Place]]) -> dict[tuple[str, ...], dict[str, _Place]]:
    """Return the places of kernels by the hash in their names, grouped by the parts that share them."""
    owners: dict[tuple[str, _Place], list[str]] = defaultdict(list)
    for part, found in sorted(parts.items()):
        for name, place in found.items():
            owners[name[-DIGEST_LETTERS:], place].append(part)
    indexes: dict[tuple[str, ...], dict[str, _Place]] = {}
    counts = Counter(map(tuple, owners.values()))
    for (letters, place), sharing in owners.items():
        for each in [tuple(sharing)] if counts[tuple(sharing)] >= _MIN_SHARED else [(part,) for part in sharing]:
            indexes.setdefault(each, {})[letters] = place
    return dict(sorted(indexes.items()))


def _compressed(content: bytes) -> bytes:
    """Compress in two ways, and return the shorter one: code is aligned on Arm, not on x86-64. Both decode alike."""
    ways = [[{**FILTERS[0], "pb": bits}] for bits in (2, 0)]
    return min((lzma.compress(content, lzma.FORMAT_RAW, filters=each) for each in ways), key=len)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _kind(name: str) -> str:
    return name[:-DIGEST_LETTERS]
