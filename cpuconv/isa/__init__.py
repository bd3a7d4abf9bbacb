"""Instruction sets, one table row each, and the vector emitter that all of them share."""

from __future__ import annotations

from cpuconv.isa.table import TABLE, Isa, current

__all__ = ["TABLE", "Isa", "current"]
