"""Calls of LLVM intrinsics and other external functions by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.runtime.code.llvm import ir


def call(builder: ir.IRBuilder, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    """Emit a call and return its result of type `result`; the function is declared with the types of the arguments."""
    module = builder.module
    known = module.globals.get(name)
    if known is None:
        known = ir.Function(module, ir.FunctionType(result, [each.type for each in arguments]), name)
    return builder.call(known, arguments)
