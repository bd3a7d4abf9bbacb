"""Pictures to inputs of networks: a program per form of pictures, and buffers that runs share.

A program is bound once for a picture's size, colour and strides, and for the place that it gets; the latest programs
are cached. Several threads may use one converter: each takes programs and buffers of its own.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import Lock
from baselib.text import count_of
from cpuconv.elements import BF16, F16, F32, OF_DTYPE, S8, U8, Element
from cpuconv.errors import ArgumentError, ArgumentTypeError, kind_of, must
from cpuconv.images.geometry import Geometry
from cpuconv.images.image import Image
from cpuconv.images.methods import METHODS, column_taps, columns_first, method_for, row_taps
from cpuconv.images.picture import CHANNELS, YUV, Picture, picture_of
from cpuconv.isa import current
from cpuconv.kernels.binding.bound_step import bind
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Space
from cpuconv.kernels.images.colors import ColorTile
from cpuconv.kernels.images.emitters import ROWS
from cpuconv.kernels.images.resize import Source, Taps, Target, resize_step
from cpuconv.memory.aligned import aligned
from cpuconv.problem.arrays import address
from cpuconv.problem.integers import divide
from cpuconv.runtime import Program

ELEMENTS = (F32, BF16, F16, U8, S8)  # of inputs that take pictures
Numbers = tuple[tuple[float, float], ...]  # scale and shift of pixels, per channel
_MAX_PROGRAMS = 16  # cached programs; the least recently used is evicted first
_MAX_BUFFERS = 4  # arrays of inputs that are kept between runs


@dataclass(frozen=True)
class ImagePort:
    """An input (N, C, H, W), or with `last` (N, H, W, C), that takes pictures; `shape` is (H, W)."""

    name: str
    batch: int | None
    channels: int
    shape: tuple[int, int]
    last: bool
    element: Element


def image_port(name: str, sizes: Sequence[Any] | None, dtype: np.dtype | None, image: Image) -> ImagePort:
    """The input of a network that takes pictures.

    Raises
    ------
    ArgumentError
        It is no input of images, or its sizes and those of `image` leave some open, or differ.
    """
    label = f"images[{name!r}]"
    form = f"an input (N, 1 or 3, H, W) or (N, H, W, 1 or 3) of {', '.join(each.label for each in ELEMENTS)}"
    element = None if dtype is None else OF_DTYPE.get(np.dtype(dtype))
    for last, axes in ((False, (1, 2, 3)), (True, (3, 1, 2))):
        if sizes is None or len(sizes) != 4 or element not in ELEMENTS or sizes[axes[0]] not in (1, 3):
            continue
        stated = [sizes[axis] if isinstance(sizes[axis], int) else None for axis in axes[1:]]
        wanted = image.shape or (None, None)
        shape = tuple(own if own is not None else asked for own, asked in zip(stated, wanted, strict=True))
        if None in shape:
            raise ArgumentError(must(f"{label}.shape", f"(H, W), which {name} leaves open", "None"))
        if any(asked not in (None, own) for own, asked in zip(shape, wanted, strict=True)):
            raise ArgumentError(must(f"{label}.shape", f"{shape}, the sizes of {name}", f"{image.shape}"))
        image.check_channels(int(sizes[axes[0]]), label)
        batch = sizes[0] if isinstance(sizes[0], int) else None
        assert element is not None
        return ImagePort(name, batch, int(sizes[axes[0]]), (int(shape[0] or 0), int(shape[1] or 0)), last, element)
    raise ArgumentError(must(label, f"for {form}", f"for one of {dtype}{list(sizes or ())}"))


class Prepared(NamedTuple):
    """An array for an input, and the place of each picture in it."""

    array: np.ndarray
    geometry: list[Geometry]


class _Bound(NamedTuple):
    """A program with the place that it gives pictures, the bytes it skips of each row, and words of its addresses."""

    place: Geometry
    skipped: int
    program: Program
    block: np.ndarray
    words: list[tuple[str, int]]
    nbytes: int


class Converter:
    """Conversion of pictures to one input of a network; `numbers` replace scale and mean of the image."""

    def __init__(self, port: ImagePort, image: Image, threads: int, numbers: Numbers | None = None) -> None:
        self.port, self.image = port, image
        self._processor = Processor(current(), threads)
        stated = image.numbers(port.channels)
        self._numbers = [(fill, *own) for (fill, *_), own in zip(stated, numbers, strict=True)] if numbers else stated
        self._lock = Lock()
        self._programs: OrderedDict[Any, list[_Bound]] = OrderedDict()
        self._buffers: list[Prepared] = []

    def __call__(self, given: Any) -> Prepared:
        """Convert a picture, or a list of pictures; `release` takes the array back, with its elements unchanged.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            One is no picture of 8 bits of the stated colour, or their number is not the batch of the input.
        """
        label = f"feed[{self.port.name!r}]"
        listed = isinstance(given, (list, tuple)) and not (self.image.color == "NV12" and isinstance(given, tuple))
        if not listed and getattr(given, "ndim", 0) == 4:
            given, listed = list(given), True
        count = len(given) if listed else 1
        if count == 0 or self.port.batch not in (None, count):
            expected = (
                "of 1 picture or more" if self.port.batch is None else f"of {count_of(self.port.batch, 'picture')}"
            )
            raise ArgumentError(must(label, expected, f"of {count_of(count, 'picture')}"))
        labels = (f"{label}[{at}]" for at in itertools.count()) if listed else iter([label])
        pictures = [picture_of(each, self.image.color, next(labels)) for each in (given if listed else [given])]
        array, before = self._buffer(count)
        return Prepared(array, [*map(self._write, pictures, array, before)])

    def example(self) -> list[np.ndarray]:
        """Black pictures of the input's size, as many as its batch has, or one."""
        height, width = (divide(size, 2) * 2 for size in self.port.shape)
        rows, channels = height * 3 // 2 if self.image.color == "NV12" else height, CHANNELS[self.image.color]
        picture = np.zeros((rows, width, channels)[: 3 if channels > 1 else 2], np.uint8)
        return [picture] * (self.port.batch or 1)

    def release(self, prepared: Prepared) -> None:
        """Give an array back, for the next call, which fills no borders that are filled."""
        with self._lock:
            if len(self._buffers) < _MAX_BUFFERS:
                self._buffers.append(prepared)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays and of the programs' workspaces that are kept."""
        with self._lock:
            bound = [each.nbytes for programs in self._programs.values() for each in programs]
            return sum(bound) + sum(array.nbytes for array, _ in self._buffers)

    def _buffer(self, count: int) -> tuple[np.ndarray, Sequence[Geometry | None]]:
        """An array for a number of pictures, and the places of those that it had before."""
        port = self.port
        sizes = (*port.shape, port.channels) if port.last else (port.channels, *port.shape)
        with self._lock:
            for at, prepared in enumerate(self._buffers):
                if len(prepared.array) == count:
                    return self._buffers.pop(at)
            del self._buffers[:1]
        return aligned((count, *sizes), port.element.outside), [None] * count

    def _write(self, picture: Picture, image: np.ndarray, before: Geometry | None) -> Geometry:
        form = picture.form
        with self._lock:
            free = self._programs.get(form)
            bound = free.pop() if free else None
        bound = bound or self._bind(picture)
        filled = before is not None and bound.place.covers(before)
        known = {"x": address(picture.array) + bound.skipped, "y": address(image), "filled": int(filled)}
        if picture.chroma is not None:
            known["chroma"] = address(picture.chroma)
        for name, at in bound.words:
            bound.block[at] = known.get(name, 0)
        bound.program.run()
        with self._lock:
            self._programs.setdefault(form, []).append(bound)
            self._programs.move_to_end(form)
            if len(self._programs) > _MAX_PROGRAMS:
                self._programs.popitem(last=False)
        return bound.place

    def _bind(self, picture: Picture) -> _Bound:
        port, space, place = self.port, Space(), self.image.placed(picture.size, self.port.shape)
        (high, wide), (height, width) = place.resized, port.shape
        shrinks = picture.size[0] >= high and picture.size[1] >= wide
        method = method_for(self.image.resize, shrinks)
        taps = METHODS[self.image.resize].taps
        top, left = max(place.top, 0), max(place.left, 0)
        rows, columns = (
            slice(max(0, -at), max(0, -at) + min(size - max(at, 0), own + min(at, 0)))
            for at, own, size in ((place.top, high, height), (place.left, wide, width))
        )
        down, lines = row_taps(taps(picture.size[0], high, shrinks), picture.size[0], rows)
        across = column_taps(taps(picture.size[1], wide, shrinks), picture.size[1], columns)
        color, order = self._colors(picture.color)
        first = color is None and columns_first(self.image.resize, picture.size, place.resized)
        pixel = picture.array.shape[2]
        chroma_row = 0 if picture.chroma is None else picture.chroma.strides[0]
        pixels, skipped = picture.size[1], 0
        if color is None:  # pixels that no output reads are skipped, as far as the kernel's 16 bytes of a row are left
            skipped = min(int(across.starts.min()), picture.array.shape[1] - divide(ROWS, pixel))
            across = Taps(across.starts - skipped, across.weights)
            pixels = max(int(across.starts.max()) + across.count, divide(ROWS, pixel))
        source = Source(pixels, picture.array.strides[0], pixel, chroma_row, color)
        channels = tuple((channel, *numbers) for channel, numbers in zip(order, self._numbers, strict=True))
        size = port.element.bytes
        strides = (size, size * width * port.channels, size * port.channels)
        strides = strides if port.last else (size * height * width, size * width, size)
        target = Target(height, width, port.element, channels, *strides, top, left)
        step = resize_step(self._processor, space, method.arithmetic, source, target, across, down, lines, first)
        workspace = aligned(space.size, np.uint8)
        owned: list[Any] = [workspace]
        bound = bind(step, owned, {"workspace": address(workspace)})
        words = [(name, at) for name, places in bound.unresolved.items() for at in places]
        program = Program([bound.row], self._processor.threads, owned)
        return _Bound(place, skipped * pixel, program, bound.block, words, space.size + step.nbytes)

    def _colors(self, color: str) -> tuple[ColorTile | None, list[int]]:
        """The conversion of a picture's rows, and the channel of the result for each channel of the network."""
        wanted = self.image.network_color
        if self.port.channels == 1:
            if color in YUV or color == "GRAY":  # luma is grey
                return None, [0]
            return ColorTile("GRAY", CHANNELS[color], tuple(color.index(each) for each in "RGB")), [0]
        if color == "GRAY":
            return None, [0, 0, 0]
        tile = ColorTile(color) if color in YUV else None
        return tile, [("RGB" if tile else color).index(each) for each in wanted]


class Pictures:
    """The inputs of a network that take pictures: `images` by name, and the sizes and the dtype of all its inputs.

    `numbers` are scale and shift of inputs that `folding` has changed.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `images` is no dict of `Image` by input name, or an input does not take such pictures.
    """

    def __init__(
        self,
        images: Any,
        ports: Mapping[str, tuple[Sequence[Any] | None, np.dtype | None]],
        threads: int,
        numbers: Mapping[str, Numbers],
    ) -> None:
        if not isinstance(images, Mapping):
            raise ArgumentTypeError(must("images", "a dict of cpuconv.Image by input name, or None", kind_of(images)))
        self._converters: dict[str, Converter] = {}
        self.images, self.numbers = images, numbers
        for name, image in images.items():
            if name not in ports:
                known = f"a dict whose keys are among {', '.join(ports)}"
                raise ArgumentError(must("images", known, f"one with {name!r}"))
            if not isinstance(image, Image):
                raise ArgumentTypeError(must(f"images[{name!r}]", "a cpuconv.Image", kind_of(image)))
            self._converters[name] = Converter(image_port(name, *ports[name], image), image, threads, numbers.get(name))

    def to_dict(self) -> dict[str, list[Any]]:
        """Plain values by input name: attributes of the image, and scale and shift per channel if they are folded."""
        return {name: [image.to_dict(), self.numbers.get(name)] for name, image in self.images.items()}

    def examples(self) -> dict[str, list[np.ndarray]]:
        """Black pictures of the inputs' sizes, by input name."""
        return {name: converter.example() for name, converter in self._converters.items()}

    def arrays(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The feed with arrays in place of pictures."""
        with self.fed(feed) as (given, _):
            return {name: given[name].copy() if name in self._converters else each for name, each in feed.items()}

    @contextmanager
    def fed(self, feed: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], dict[str, list[Geometry]]]]:
        """The feed with arrays in place of pictures, valid in this context, and the place of each picture."""
        prepared: dict[str, Prepared] = {}
        try:
            for name, converter in self._converters.items() if isinstance(feed, Mapping) else ():
                if name in feed:
                    prepared[name] = converter(feed[name])
            places = {name: each.geometry for name, each in prepared.items()}
            yield {**feed, **{name: each.array for name, each in prepared.items()}} if prepared else feed, places
        finally:
            for name, each in prepared.items():
                self._converters[name].release(each)
