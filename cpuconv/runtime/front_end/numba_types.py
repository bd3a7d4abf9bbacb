"""Numba types of a kernel's two arguments: a tile (compile-time) and an argument block (run-time).

This module imports Numba: it is imported when a driver is compiled.

A tile is a frozen dataclass whose values are part of its Numba type, like a C++ template argument. In a kernel,
``tile.v`` is a constant, a member that is a tile gives that tile, and intrinsics read the same values to emit code. An
argument block is the address of int64 words; ``args.x`` loads the word that the kernel declared under that name.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_getattr_generic
from numba.core.registry import cpu_target
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model, typeof_impl

from cpuconv.runtime.driver_functions import DriverFunction
from cpuconv.runtime.tiles import tile_text

I64 = ir.IntType(64)


class TileType(types.Type):
    """The Numba type of one tile; the tile itself is at ``.tile``."""

    def __init__(self, tile: Any) -> None:
        self.tile = tile
        super().__init__(name=tile_text(tile))


class BlockType(types.Type):
    """The Numba type of an argument block with these field names."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields
        self.index = {name: position for position, name in enumerate(fields)}
        super().__init__(name=f"Block({','.join(fields)})")


register_model(TileType)(models.OpaqueModel)


@register_model(BlockType)
class _BlockModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: BlockType) -> None:
        super().__init__(dmm, fe_type, I64.as_pointer())


@infer_getattr
class _TileAttributes(AttributeTemplate):
    key = TileType

    def generic_resolve(self, value: TileType, attr: str) -> Any:
        member = getattr(value.tile, attr, None)
        if member is None:
            return None
        return TileType(member) if dataclasses.is_dataclass(member) else types.int64


@infer_getattr
class _BlockAttributes(AttributeTemplate):
    key = BlockType

    def generic_resolve(self, value: BlockType, attr: str) -> Any:
        return types.int64 if attr in value.index else None


@lower_getattr_generic(TileType)
def _tile_getattr(context: Any, builder: Any, typ: TileType, value: Any, attr: str) -> Any:
    member = getattr(typ.tile, attr)
    if dataclasses.is_dataclass(member):
        return context.get_dummy_value()
    return context.get_constant(types.int64, int(member))


@lower_getattr_generic(BlockType)
def _block_getattr(context: Any, builder: Any, typ: BlockType, value: Any, attr: str) -> Any:
    return builder.load(builder.gep(value, [ir.Constant(I64, typ.index[attr])]))


@typeof_impl.register(DriverFunction)
def _typeof_described(value: DriverFunction, context: Any) -> Any:
    function, typing = value.numba_function, cpu_target.typing_context
    typing.refresh()  # registers intrinsics and overloads that were just made
    return typing.resolve_value_type(function)
