"""Fingerprints of arrays: 128 bits that are equal for equal content, at any address.

`kernels.streams.fingerprint` reduces the memory, at the speed of reading it, to a few sums, with a random key per
process. BLAKE2b (RFC 7693) hashes these sums, the bytes that fill no vector, the shape and the order of axes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpuconv.elements import F32
from cpuconv.isa import current
from cpuconv.kernels.streams.fingerprint import BLOCK, SUMS, FingerprintTile, fingerprint, sum_blocks
from cpuconv.memory.aligned import aligned
from cpuconv.problem.arrays import address
from cpuconv.runtime import Program

Fingerprint = bytes
"""A digest of 16 bytes."""

_LARGE = 1 << 20  # bytes from which on several threads share an array; the digest does not depend on their number
_MAX_HEADS = 4096  # shapes with cached text
_blake2b = hashlib.blake2b
_CHUNKS = 8  # chunks of a large array, with separate sums


@dataclass
class _Context:
    """Argument block and sums of one caller."""

    block: memoryview
    sums: np.ndarray
    program: Program


class Fingerprinter:
    """Computes fingerprints with its own key; several threads may call it concurrently.

    Parameters
    ----------
    key : callable
        Returns a given number of random bytes. Fingerprints are comparable if keys and lanes are equal.
    lanes : int or None
        Lanes of the summed vectors; any instruction set can run any number. None: those of the instruction set.
    """

    def __init__(self, key: Callable[[int], bytes] = os.urandom, lanes: int | None = None) -> None:
        lanes = lanes or current().lanes
        self._vector = F32.bytes * lanes
        self._tile = FingerprintTile(lanes)
        self._key = aligned((BLOCK + SUMS - 1) * self._vector, np.uint8)
        self._key[:] = np.frombuffer(key(self._key.nbytes), np.uint8)
        self._contexts: dict[tuple[int, int], list[_Context]] = {}
        self._heads: dict[tuple[int, ...], bytes] = {}
        self._constant: dict[int, tuple[weakref.ref[np.ndarray], Fingerprint]] = {}

    def __call__(self, array: np.ndarray, threads: int = 1) -> Fingerprint:
        """Compute the fingerprint of an array with any strides.

        Equal arrays with another order of axes in memory may have another fingerprint. Arrays that cannot be written to
        (`is_constant`) are read once, and recognised by their identity while that is so.
        """
        name = id(array)
        known = self._constant.get(name)
        if known is not None:
            if known[0]() is array and is_constant(array):
                return known[1]
            self._constant.pop(name, None)
        digest = self._read(array, threads)
        if is_constant(array):
            self._constant[name] = weakref.ref(array, lambda _: self._constant.pop(name, None)), digest
        return digest

    def forget(self) -> None:
        """Clear the fingerprints of constant arrays: all are read again."""
        self._constant.clear()

    def _read(self, array: np.ndarray, threads: int) -> Fingerprint:
        content = self._heads.get(array.shape) if array.flags.c_contiguous else None
        if content is None:
            content, array = self._head(array)
        size = array.nbytes
        if size < self._vector:
            return _blake2b(content + array.tobytes(), digest_size=16).digest()
        start = address(array)
        vectors, rest = divmod(size, self._vector)
        kind = (_CHUNKS, min(threads, _CHUNKS)) if size >= _LARGE else (1, 1)
        try:
            context = self._contexts[kind].pop()
        except (IndexError, KeyError):
            context = self._new_context(*kind)
        context.block[_X], context.block[_VECTORS] = start, vectors
        context.program.run()
        content += context.sums.tobytes()
        self._contexts[kind].append(context)
        if rest:
            content += ctypes.string_at(start + size - rest, rest)
        return _blake2b(content, digest_size=16).digest()

    def _head(self, array: np.ndarray) -> tuple[bytes, np.ndarray]:
        """A text that distinguishes arrays with equal memory, and an array of this memory without gaps."""
        shape, order = array.shape, list(range(array.ndim))
        if not array.flags.c_contiguous:
            axes = sorted(order, key=lambda axis: -array.strides[axis])
            dense = array.transpose(axes)  # in memory order; contiguous if it has no gaps
            order, array = (axes, dense) if dense.flags.c_contiguous else (order, np.ascontiguousarray(array))
        head = repr((shape, order)).encode()
        if order == sorted(order) and len(self._heads) < _MAX_HEADS:
            self._heads[shape] = head
        return head, array

    def _new_context(self, chunks: int, threads: int) -> _Context:
        self._contexts.setdefault((chunks, threads), [])
        sums = aligned((chunks, SUMS * self._vector), np.uint8)
        owned: list[Any] = [self._key, sums]
        words = {
            "sum_blocks": sum_blocks.entry(self._tile).address_for(owned),
            "x": 0,
            "vectors": 0,
            "chunks": chunks,
            "key": address(self._key),
            "sums": address(sums),
            "sums_step": SUMS * self._vector,
        }
        block = fingerprint.pack(words)
        program = Program([(fingerprint.entry(self._tile), block, threads > 1)], threads, owned)
        return _Context(block.data, sums, program)


_X, _VECTORS = fingerprint.fields.index("x"), fingerprint.fields.index("vectors")


def is_constant(array: np.ndarray) -> bool:
    """Whether the array is read-only and owns its memory, or is a view of a bytes object.

    It can then change only through a view made before it became read-only, or if it is made writable again.
    """
    while not array.flags.writeable:
        if array.flags.owndata:
            return True
        if not isinstance(array.base, np.ndarray):
            return isinstance(array.base, bytes)
        array = array.base
    return False
