"""Saved models with something wrong in them, and what must come of it."""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import cpuconv
from cpuconv.errors import CpuconvError, SourceError
from cpuconv.network.saved import container

_STRANGE = (None, True, -1, 0, 1, 2, 3, 7, 64, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, 5e-324, float("nan"))
_STRANGE += ("", "x", "x" * 5000, "\x00", "ok", "float32", "direct(v=1)", [], {}, [[]])


def header_of(data: bytes) -> dict[str, Any]:
    """The header of a file."""
    size = container.PREFIX.unpack_from(data)[2]
    return json.loads(data[container.START : container.START + size])


def with_header(data: bytes, header: object, version: int = container.FORMAT) -> bytes:
    """The file with another header, and the checksums right again."""
    size = container.PREFIX.unpack_from(data)[2]
    blocks = data[container.rounded(container.START + size) :]
    text = json.dumps(header).encode()
    begin = container.rounded(container.START + len(text))
    prefix = container.PREFIX.pack(container.MAGIC, version, len(text), begin + len(blocks))
    start = prefix + container.digest(prefix, text) + text
    return start + bytes(begin - len(start)) + blocks


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The file with bits flipped, cut, or with parts of it moved."""
    at, other = sorted(rng.randrange(len(data)) for _ in range(2))
    length = rng.choice((1, 4, 64, 1000))
    kind = rng.randrange(5)
    if kind == 0:
        place = rng.randrange(min(len(data), rng.choice((64, 4096, len(data)))))
        return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[at + length :]
    if kind == 3:
        return data[:at] + data[other : other + length] + data[at:]
    return data[:at] + data[other : other + length] + data[at + length :]


def forged(data: bytes, rng: random.Random) -> bytes:
    """The file with a header that says something else, checksums right."""
    header = copy.deepcopy(header_of(data))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(header, rng)
    return with_header(data, header)


def _change(header: dict[str, Any], rng: random.Random) -> None:
    """Change something, as often as not in what a program's nodes are and how they are computed."""
    programs = header.get("programs")
    holder: Any = header
    if rng.random() < 0.5 and isinstance(programs, list) and programs and isinstance(programs[0], dict):
        inner = programs[0].get(rng.choice(("graph", "chosen"))) or header
        holder = inner.get("nodes") or inner if isinstance(inner, dict) else header
    change(holder, rng)


def change(holder: Any, rng: random.Random) -> None:
    """Change a value, a name or a place somewhere in a structure of dicts and lists."""
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = holder[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.1:
            break
        holder = inner
    kind = rng.randrange(7)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = copy.deepcopy(holder[rng.choice(keys)])
    elif kind == 2 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(inner))
    elif kind == 3 and type(inner) in (int, float):
        holder[key] = rng.choice((inner + 1, inner - 1, -inner, 2 * inner, inner / 2, 1000 * inner, 10**9 * inner))
    elif kind in (3, 4) and isinstance(inner, str) and inner:
        at = rng.randrange(len(inner))
        holder[key] = inner[:at] + rng.choice("0123456789-=(),.ax") + inner[at + 1 :]
    elif kind == 5 and isinstance(holder, dict):
        holder[rng.choice(("x", "", "name"))] = holder.pop(key)
    else:
        holder[key] = copy.deepcopy(rng.choice(_STRANGE))


def outcome(path: Path, data: bytes, feed: Mapping[str, np.ndarray]) -> str | dict[str, np.ndarray]:
    """What loading the file and running it gives: one of our errors, or results."""
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = cpuconv.load(path)
        except SourceError as error:
            return str(error)
        try:
            return model.run(feed)
        except CpuconvError as error:  # the network may have become one of other inputs
            return str(error)
