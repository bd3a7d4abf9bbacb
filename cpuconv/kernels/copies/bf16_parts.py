"""Split an activation into bfloat16 parts, in channel blocks with the padding of a convolution around."""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.copies.rounding import call_split_rows
from cpuconv.kernels.copies.rows import zero_pixels
from cpuconv.runtime.kernel import kernel


@dataclass(frozen=True)
class PartsTile:
    """Tile of the driver: float32 lanes of a vector, half of a channel block of bfloat16; parts per number."""

    lanes: int
    parts: int


@kernel(
    "x y split batch blocks height width in_height inside channels pad_top pad_left x_image x_cb x_h x_w y_image "
    "part_step y_block group_blocks"
)
def split_activation(tile, worker, before, part, parts, args):
    """Parts of y = x with zeros around: y is [image][group][part][block of the group][height][width][2 * lanes].

    Units are rows of y, of a block of channels. Vectors of x are `x_cb` bytes apart. `inside`: columns of x in y.
    """
    lanes = tile.lanes
    pixel = 4 * lanes
    units = args.batch * args.height * args.blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        block = unit % args.blocks
        row = unit // args.blocks % args.height
        image = unit // args.blocks // args.height
        first = 2 * block * lanes
        place = block // args.group_blocks * tile.parts * args.group_blocks + block % args.group_blocks
        y = args.y + image * args.y_image + place * args.y_block + row * args.width * pixel
        is_input = 0 <= row - args.pad_top < args.in_height and args.inside > 0
        left = args.pad_left if is_input and args.channels - first >= 2 * lanes else args.width
        right = left + args.inside
        for each in range(tile.parts):
            plane = y + each * args.part_step
            zero_pixels(tile, plane, left)
            if right < args.width:
                zero_pixels(tile, plane + right * pixel, args.width - right)
        if is_input:
            x = args.x + image * args.x_image + (row - args.pad_top) * args.x_h + 2 * block * args.x_cb
            for half in range(2):
                valid = min(lanes, args.channels - first - half * lanes)
                if valid > 0:
                    call_split_rows(
                        args.split,
                        x=x + half * args.x_cb,
                        x_step=args.x_w,
                        depth=valid,
                        rows=args.inside,
                        y=y + args.pad_left * pixel + half * 2 * lanes,
                        y_step=pixel,
                        part_step=args.part_step,
                    )
