"""Driver of the int8 1x1 convolution of channel planes to few output channels, whose lanes are pixels.

The work is cut into units (image, run of tiles); a part is a contiguous range of units. With many input channels, a run
takes some at a time. So few planes are read concurrently, and all tiles of output channels find them in L1. Partial
sums are stored in the worker's workspace.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.convolutions.plane_words_tile import call_plane_words_strip
from cpuconv.runtime.kernel import kernel


@dataclass(frozen=True)
class PlaneWordsCall:
    """Lanes per vector; the micro-kernels are arguments."""

    lanes: int


@kernel(
    "strip strip_first strip_middle x y w bias residual table segments steps segment_bytes tiles tile_pixels "
    "tile_channels tile_bytes batch width runs row_tiles suspended suspended_step suspended_tile x_image y_image "
    "y_plane"
)
def plane_words(tile, worker, before, part, parts, args):
    """y = epilogue(convolution of x and w), planes in and out; see the module.

    The segments are computed in `steps` steps: by `strip_first`, by `strip_middle`, and the last by `strip`.
    """
    suspended = args.suspended + worker * args.suspended_step
    units = args.batch * args.runs
    high = args.width - args.tile_pixels
    for unit in range(units * part // parts, units * (part + 1) // parts):
        run = unit % args.runs
        image = unit // args.runs
        first_tile = args.row_tiles * run // args.runs
        last_tile = args.row_tiles * (run + 1) // args.runs
        for step in range(args.steps):
            segment = args.segments * step // args.steps
            count = args.segments * (step + 1) // args.steps - segment
            strip = args.strip if step == args.steps - 1 else args.strip_middle if step > 0 else args.strip_first
            for number in range(args.tiles):
                channel = number * args.tile_channels
                call_plane_words_strip(
                    strip,
                    x=args.x + image * args.x_image,
                    table=args.table + 32 * segment,
                    segments=count,
                    w=args.w + number * args.tile_bytes + segment * args.segment_bytes,
                    y=args.y + image * args.y_image + channel * args.y_plane,
                    yplane=args.y_plane,
                    bias=args.bias + 4 * channel,
                    residual=args.residual - args.y,
                    suspended_sums=suspended + number * args.suspended_tile,
                    first=first_tile,
                    last=last_tile,
                    high=high,
                )
