"""The closed set of GEMM strips: lists its tiles, and replaces a step's strips by those of the set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cpuconv.elements import BF16, F32, S8, S32, U8, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.columns import Columns, columns_for
from cpuconv.kernels.binding.steps import MicroRef, OneOf, Step
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.product import BY_NAME, WORD, Product, as_seen, matrix_product_of, pair_product, product_of
from cpuconv.kernels.products.closed.closed_strip import closed_strip
from cpuconv.kernels.products.closed.closed_tile import (
    COMPLEX,
    LINES,
    MATRIX,
    PIXELS,
    PLANES,
    ClosedTile,
    Words,
    activation_words,
)
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.products.matrix_strip import matrix_strip
from cpuconv.kernels.products.tiling import closed_columns
from cpuconv.problem.types import ALL_F32, Types

_NETWORKS = (ALL_F32, Types(BF16, BF16, F32, BF16), Types(U8, S8, S32, U8))
_BEFORE = ("gemm_first", "gemm_middle", "gemm_last_first", "gemm_last_middle")  # strips of all parts but the last


def form_of(tile: GemmTile) -> str:
    """The closed form of a GEMM tile."""
    if tile.complex:
        return COMPLEX
    if tile.planar:
        return PLANES if tile.xs else MATRIX
    return PIXELS if tile.ks else LINES


def closed_tile(tile: GemmTile) -> ClosedTile | None:
    """The tile of the closed set that computes the same as a GEMM tile; None: there is none."""
    product = BY_NAME[tile.product]
    if tile.rows > 1 + tile.complex or tile.loose or tile.suspend or tile.row_pixels:
        return None
    if not _able(product):
        return None
    last = bool(tile.valid or tile.masked or tile.zeros or tile.unused_vectors)
    return ClosedTile(
        form_of(tile), tile.lanes, tile.v, tile.cols, last, tile.unused_vectors, tile.product, tile.x, tile.y
    )


def closed_step(step: Step) -> Step | None:
    """The step with strips of the closed set; None: some tile has no equivalent in it."""
    args = {**step.args, **{name: 0 for name in _BEFORE if name in step.args}}
    if any(isinstance(value, MicroRef) and value.kernel is matrix_strip for value in args.values()):
        return None
    if "parts" in args:
        args["parts"] = 1
    open_ = {name: refs for name, value in args.items() if (refs := _strips_of(value))}
    if not open_:
        return step
    for name, refs in open_.items():
        found = tuple(ref for each in refs if (ref := closed_ref(each.tile)) is not None)
        if len(found) < len(refs):
            return None
        value = args[name]
        args[name] = replace(value, refs=found) if isinstance(value, OneOf) else found[0]
    tiles = [refs[0].tile for refs in open_.values()]
    tails = args["tails"]
    assert isinstance(tails, int)
    args["tails"] = _words(tiles, tails).array
    return replace(step, args=args)


def _strips_of(value: object) -> tuple[MicroRef, ...]:
    refs = (value,) if isinstance(value, MicroRef) else value.refs if isinstance(value, OneOf) else ()
    return refs if refs and refs[0].kernel is gemm_strip else ()


def closed_ref(tile: GemmTile) -> MicroRef | None:
    """The strip of the closed set that replaces a tile; None: there is none."""
    found = closed_tile(tile)
    return None if found is None else MicroRef(closed_strip, found)


def row_columns(isa: Isa, seen: Isa, gemm: GemmTile, last: GemmTile, pixels: Any) -> Columns:
    """Options for the columns of a row's tiles: those of a strip and of `last` (last panel), or of the closed set.

    `seen` is the instruction set as the dot-product kind sees it (`as_seen`)."""

    def strips(cols: int) -> list[MicroRef]:
        return [ref for tile in (gemm, last) if (ref := closed_ref(replace(tile, cols=cols))) is not None]

    others = closed_columns(seen, gemm.v) if isa.closed and gemm.rows == 1 else ()
    return columns_for(gemm.cols, others, pixels, strips)


def _words(tiles: list[GemmTile], tails: int) -> Words:
    """Run-time words of a driver's strips; those of the last panel come from the last tile."""
    tile, last = tiles[0], tiles[-1]
    epilogue = tile.epilogue
    rows = (len(epilogue.rows) if tile.has_epilogue else 1) * 4 * tile.lanes
    return Words(
        whole=tile.unroll,
        tails=tails,
        scalars=tile.tail,
        column=4 * tile.xs,
        out=4 * tile.ys,
        scalar=4 * tile.ks,
        plain=int(not tile.has_epilogue),
        residual=int(tile.residual),
        valid=last.valid or tile.lanes,
        zeros=last.zeros,
        **activation_words(tile.activation if tile.has_epilogue else None),
        long=int(epilogue.sum.integer and not epilogue.short),
        rows=rows,
        behind=4 * tile.lanes * _rows_behind(epilogue),
    )


def _rows_behind(epilogue: Epilogue) -> int:
    """Rows before the output's zero point."""
    return epilogue.rows.index("zero") if "zero" in epilogue.rows else 0


def strips(isa: Isa, types: Types) -> list[ClosedTile]:
    """All strips of the closed set that problems of those types may need; none where their kind is not in it."""
    product = product_of(types, isa)
    if product is None or not _able(product):
        return []
    found = [*_of_form(PIXELS, isa, product, types.x, types.y)]
    if types == ALL_F32:
        found += [each for form in (LINES, MATRIX, PLANES) for each in _of_form(form, isa, product, F32, F32)]
    return [*found, *_of_transforms(isa, types)]


def has_closed_set(isa: Isa) -> bool:
    """Whether strips of the closed set are as fast as others for all types of networks."""
    products = (product_of(types, isa) for types in _NETWORKS)
    matrices = any(matrix_product_of(types) is not None for types in _NETWORKS)
    return not matrices and all(product is None or _able(product) for product in products)


def _able(product: Product) -> bool:
    """Whether the closed set supports a dot-product kind."""
    return not (product.compact or product.paired or product.matrix)


def _of_form(form: str, isa: Isa, product: Product, x: Element, y: Element) -> Iterator[ClosedTile]:
    """Strips of a form, for whole panels and for last ones, which may lack vectors of an output block."""
    side, seen, plain = WORD // y.bytes, as_seen(isa, product), x == y == F32
    for v in range(1, len(isa.pixels) + 1):
        if side > 1 and v % side and side % v:
            continue
        for cols in closed_columns(seen, v):
            tile = ClosedTile(form, isa.lanes, v, cols, product=product.name, x=x, y=y)
            yield tile
            for unused_vectors in range(1 if plain else v):
                yield replace(tile, last=True, unused_vectors=unused_vectors)


def _of_transforms(isa: Isa, types: Types) -> Iterator[ClosedTile]:
    """Strips for GEMMs of transformed tiles: Winograd's int16, and FFT's complex numbers."""
    if types.x.integer:
        product = pair_product(isa)
        for v in range(1, len(isa.pixels) + 1):
            for cols in closed_columns(as_seen(isa, product), v):
                yield ClosedTile(PIXELS, isa.lanes, v, cols, product=product.name, x=product.x, y=product.sum)
        return
    for v, most in enumerate(isa.pairs, 1):
        yield from (ClosedTile(COMPLEX, isa.lanes, v, cols) for cols in closed_columns(isa, v) if cols <= most)
    if types != ALL_F32:
        yield from (each for each in _of_form(PIXELS, isa, BY_NAME["fma"], F32, F32) if not each.last)
