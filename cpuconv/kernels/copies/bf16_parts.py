"""Convert an activation to bfloat16 parts in channel blocks, with the padding of a convolution around, and back."""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.elements import F32, PART_STEP, Element
from cpuconv.kernels.binding.steps import Args, MicroRef, Operand, Step
from cpuconv.kernels.copies.rounding import RoundTile, call_round_rows, round_rows
from cpuconv.kernels.copies.rows import zero_pixels
from cpuconv.problem.integers import divide
from cpuconv.runtime.kernel import kernel
from cpuconv.symbolic.sizes import greatest, least


@dataclass(frozen=True)
class PartsTile:
    """Tile of the driver: float32 lanes of a vector, half of a channel block; parts per number; direction."""

    lanes: int
    parts: int
    joins: bool = False


@kernel(
    "x y convert batch blocks height width in_height inside channels pad_top pad_left x_image x_cb x_h x_w "
    "y_image y_block"
)
def move_parts(tile, worker, before, part, parts, args):
    """Split x into bfloat16 parts in y, zero-padded: [image][block][height][width][part][2 * lanes]; `joins`: sum the
    parts of y to x.

    Units are rows of y, of a block of channels. Vectors of x are `x_cb` bytes apart. `inside`: columns of x in y.
    """
    lanes = tile.lanes
    pixel = 4 * lanes * tile.parts
    units = args.batch * args.height * args.blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        block = unit % args.blocks
        row = unit // args.blocks % args.height
        image = unit // args.blocks // args.height
        first = 2 * block * lanes
        y = args.y + image * args.y_image + block * args.y_block + row * args.width * pixel
        is_input = 0 <= row - args.pad_top < args.in_height and args.inside > 0
        if not tile.joins:
            left = args.pad_left if is_input and args.channels - first >= 2 * lanes else args.width
            right = left + args.inside
            zero_pixels(tile, y, left * tile.parts)
            if right < args.width:
                zero_pixels(tile, y + right * pixel, (args.width - right) * tile.parts)
        if is_input:
            x = args.x + image * args.x_image + (row - args.pad_top) * args.x_h + 2 * block * args.x_cb
            y += args.pad_left * pixel
            for half in range(2):
                valid = min(lanes, args.channels - first - half * lanes)
                there = y + half * 2 * lanes
                here = x + half * args.x_cb
                if valid > 0 and tile.joins:
                    call_round_rows(
                        args.convert,
                        x=there,
                        x_step=pixel,
                        depth=lanes,
                        rows=args.inside,
                        y=here,
                        y_step=args.x_w,
                    )
                elif valid > 0:
                    call_round_rows(
                        args.convert,
                        x=here,
                        x_step=args.x_w,
                        depth=valid,
                        rows=args.inside,
                        y=there,
                        y_step=pixel,
                    )


def parts_step(
    lanes: int,
    shape: tuple[int, int, int, int],
    x: Operand,
    y: Operand,
    element: Element,
    pads: tuple[int, int] = (0, 0),
    plane: tuple[int, int] | None = None,
    joins: bool = False,
) -> Step:
    """Make the serial call that splits an activation of `shape`, (N, C, H, W), or joins its parts.

    Parameters
    ----------
    x, y : Operand
        float32 in vectors of channels; and parts of `element`. With `joins`, x is the output.
    pads, plane : (int, int)
        Rows and columns of padding before x, and those of y with all padding; None: those of x.
    """
    n, c, h, w = shape
    (top, left), (height, width) = pads, plane or (h, w)
    ends = (element, F32) if joins else (F32, element)
    args: Args = {
        "x": x.ref,
        "y": y.ref,
        "convert": MicroRef(round_rows, RoundTile(lanes, *ends)),
        "batch": n,
        "blocks": divide(c, PART_STEP // element.part_bytes),
        "height": height,
        "width": width,
        "in_height": h,
        "inside": greatest(0, least(w, width - left)),
        "channels": c,
        "pad_top": top,
        "pad_left": left,
        "x_image": x.strides.n,
        "x_cb": x.strides.cb,
        "x_h": x.strides.h,
        "x_w": x.strides.w,
        "y_image": y.strides.n,
        "y_block": y.strides.cb,
    }
    return Step(move_parts, PartsTile(lanes, element.parts, joins), args)
