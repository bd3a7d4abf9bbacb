"""Stored form of a compiled kernel: its function's symbol, a hash of its LLVM IR, and object code."""

from __future__ import annotations

from typing import NamedTuple


class KernelBody(NamedTuple):
    """A compiled kernel.

    Attributes
    ----------
    symbol : str
        Symbol of its function.
    ir_hash : str
        `machine_code.hash_of` the LLVM IR that it was compiled from; empty if unknown.
    code : bytes
        An object file.
    """

    symbol: str
    ir_hash: str
    code: bytes

    def to_bytes(self) -> bytes:
        """Return the content that `of` parses."""
        return f"{self.symbol} {self.ir_hash}".encode() + b"\0" + self.code

    @classmethod
    def of(cls, content: bytes) -> KernelBody:
        """Parse the content of a kernel file."""
        head, _, code = content.partition(b"\0")
        symbol, _, ir_hash = head.decode(errors="replace").partition(" ")
        return cls(symbol, ir_hash, code)
