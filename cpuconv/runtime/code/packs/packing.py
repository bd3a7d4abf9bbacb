"""Making packs (`pack_file`): kernels of one kind lie side by side, alike ones in one block, and equal ones once."""

from __future__ import annotations

import hashlib
import itertools
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.files import write_whole
from cpuconv.runtime.code.packs import likeness
from cpuconv.runtime.code.packs.pack_file import DIGEST_LETTERS, FILTERS, FORMAT, MAGIC, PREFIX, checksum

_BLOCK_BYTES = 1 << 17  # of kernels, before they are compressed: larger blocks are smaller, and take longer to read
_CODE = 71  # bytes of a kernel before its code: its symbol, and the header of an object file, which begins with sizes

Kernels = Mapping[str, bytes]
"""By the name of a kernel's file (`kernel_files.KernelFile`)."""


def packed(parts: Mapping[str, Kernels]) -> bytes:
    """A pack of so many parts: the same bytes for the same kernels, in whatever order they come."""
    kinds = {content: _kind(name) for kernels in parts.values() for name, content in sorted(kernels.items())}
    ordered = sorted(kinds, key=lambda each: (kinds[each], each[_CODE:], each))
    groups = (list(group) for _, group in itertools.groupby(ordered, kinds.__getitem__))
    places: dict[bytes, tuple[int, int, int]] = {}
    blocks = []
    for number, contents in enumerate(likeness.blocks(groups, _BLOCK_BYTES)):
        start = 0
        for content in contents:
            places[content] = number, start, len(content)
            start += len(content)
        blocks.append(b"".join(contents))
    texts = {
        name: _json({each[-DIGEST_LETTERS:]: places[content] for each, content in kernels.items()})
        for name, kernels in sorted(parts.items())
    }
    pieces, table, end = [], [], 0
    for content in (*texts.values(), *blocks):
        pieces.append(lzma.compress(content, lzma.FORMAT_RAW, filters=FILTERS))
        table.append((end, len(pieces[-1]), len(content), checksum(content)))
        end += len(pieces[-1])
    header = lzma.compress(_json({"parts": [*texts], "pieces": table}), lzma.FORMAT_RAW, filters=FILTERS)
    prefix = PREFIX.pack(MAGIC, FORMAT, len(header))
    return b"".join([prefix, hashlib.sha256(prefix + header).digest(), header, *pieces])


def write(path: Path, parts: Mapping[str, Kernels]) -> None:
    """Write a pack whole or not at all."""
    write_whole({path: packed(parts)})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _kind(name: str) -> str:
    return name[:-DIGEST_LETTERS]
