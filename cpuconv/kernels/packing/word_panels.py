"""Panels of weights narrower than float32, in the 32-bit groups of the GEMM tile's dot-product kind."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element, to_float32
from cpuconv.kernels.emit.product import BY_NAME, WORD, Product
from cpuconv.kernels.packing.joined_words import join
from cpuconv.kernels.packing.packing import Filters, Packing, Room, room
from cpuconv.kernels.packing.word_parts import in_parts
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem


@dataclass(frozen=True)
class WordPanels(Packing):
    """Form [group][panel][block of C][R][S][32-bit group][part][v][lanes of K][elements of a group's part].

    With `rows_first`, it is [group][panel][R][block of C][S]… instead.

    A 32-bit group (word) has `group` input channels; missing input and output channels are zero. The last block has the
    remaining groups, rounded up to those that one instruction multiplies. 2 x 2 matrix kinds (`paired`) have [two
    groups][v][half of the lanes of K][channel][group][elements] within a tap. Kinds by single elements (`by_lane`) have
    [v][elements][lanes of K] within a group, those with float16 sums (`half_sums`) [elements][v][lanes of K].

    Attributes
    ----------
    filters : Filters
    c, r, s : int
        Input channels of a group, kernel height and width.
    group : int
    product : str
        Name of the dot-product kind in `product.TABLE`.
    w : Element
        Type of the weights before packing.
    block : int
        32-bit groups per block of C.
    rows_first : bool
        Kernel rows are outermost.
    """

    filters: Filters
    c: int
    r: int
    s: int
    group: int
    product: str
    w: Element
    block: int
    rows_first: bool = False

    @classmethod
    def of(
        cls, problem: ConvProblem, lanes: int, v: int, product: Product, block: int = 0, rows_first: bool = False
    ) -> WordPanels:
        """The panels of a problem, by default with as many 32-bit groups per block as there are lanes. Convolution
        groups that fill whole panels are merged."""
        full = problem.kg % (v * lanes) == 0
        filters = Filters(lanes, v, *((1, problem.k) if full else (problem.groups, problem.kg)))
        group = WORD // problem.types.x.bytes
        kernel = problem.cg, problem.r, problem.s
        return cls(filters, *kernel, group, product.name, problem.types.w, block or lanes, rows_first)

    @property
    def words(self) -> int:
        """32-bit groups of a convolution group's input channels."""
        at_once = BY_NAME[self.product].words_at_once(self.filters.lanes)
        return divide(divide(self.c, self.group), at_once) * at_once

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        filters = self.filters
        rows = self.words * self.r * self.s * BY_NAME[self.product].parts
        return filters.groups * filters.panels * rows * filters.row

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; `weight` has the type `w`, the result is uint8."""
        filters, product = self.filters, BY_NAME[self.product]
        packed = place(self.size)
        target = packed.reshape(filters.groups, filters.panels, -1)
        step = product.parts * filters.row
        for group in range(filters.groups):
            given = weight[group * filters.k : (group + 1) * filters.k]
            filled = np.zeros(
                (filters.panels * filters.v * filters.lanes, self.words * self.group, self.r, self.s), self.w.dtype
            )
            filled[: filters.k, : self.c] = given
            split = filled.reshape(filters.panels, filters.v, filters.lanes, self.words, -1, self.r, self.s)
            rows = [(row, row + 1) for row in range(self.r)] if self.rows_first else [(0, self.r)]
            for first, (row, end) in itertools.product(range(0, self.words, self.block), rows):
                words = np.moveaxis(split[:, :, :, first : first + self.block, :, row:end], 4, -1)
                block = _in_order(in_parts(words, product), product)
                elements = _as_packed(np.ascontiguousarray(block), self.w, product.packed)
                if product.flipped:
                    join(words, elements)
                start = (row * self.words + first * (end - row)) * self.s * step
                piece = elements.reshape(filters.panels, -1).view(np.uint8)
                target[group, :, start : start + piece.shape[1]] = piece
        return packed


@dataclass(frozen=True)
class GroupPanels(Packing):
    """Form [vector of K][32-bit group][R][S][part][lanes of K][elements], of convolution groups that share vectors.

    Attributes
    ----------
    form : WordPanels
        Form of filters with whole 32-bit groups.
    starts : tuple[int, ...]
        For each lane, the element of its first 32-bit group that is the first channel of its convolution group.
    """

    form: WordPanels
    starts: tuple[int, ...]

    @classmethod
    def of(cls, problem: ConvProblem, product: Product, channels: int, starts: tuple[int, ...]) -> GroupPanels:
        """The panels of a problem, with each filter padded to `channels` channels."""
        whole = replace(problem, c=channels, groups=1)
        return cls(WordPanels.of(whole, len(starts), 1, product, 1), starts)

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; `weight` has the type of `form`."""
        filled = np.zeros((len(weight), self.form.c, *weight.shape[2:]), weight.dtype)
        for lane, start in enumerate(self.starts):
            filled[lane :: len(self.starts), start : start + weight.shape[1]] = weight[lane :: len(self.starts)]
        return self.form.pack(filled, threads, place)


@dataclass(frozen=True)
class SpanPanels(Packing):
    """Panels of grouped convolutions, packed as one group: each panel starts at its first channel; zero elsewhere.

    Attributes
    ----------
    form : WordPanels
        Form of one group, with as many channels as the longest panel reads.
    starts : tuple[int, ...]
        First channel of each panel.
    channels, kernels : int
        Input and output channels of a group.
    """

    form: WordPanels
    starts: tuple[int, ...]
    channels: int
    kernels: int

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; `weight` has the type of `form`."""
        filters = self.form.filters
        filled = np.zeros((len(weight), self.form.c, *weight.shape[2:]), weight.dtype)
        for k, given in enumerate(weight):
            start = k // self.kernels * self.channels - self.starts[k // (filters.v * filters.lanes)]
            filled[k, start : start + self.channels] = given
        return self.form.pack(filled, threads, place)


@dataclass(frozen=True)
class PatchPanels(Packing):
    """Panels whose reduction is in the order of patches: (kernel row, kernel column, channel).

    Attributes
    ----------
    form : WordPanels
        Form of 1x1 kernels with a channel for each element of a patch.
    r, s : int
        Kernel height and width.
    channels : int
        Channels per group.
    pixel, row : int
        Elements of a pixel and of a kernel row in a patch; those after the channels are zero.
    """

    form: WordPanels
    r: int
    s: int
    channels: int
    pixel: int
    row: int

    @classmethod
    def of(
        cls, problem: ConvProblem, lanes: int, v: int, product: Product, pixel: int = 0, row: int = 0, segment: int = 0
    ) -> PatchPanels:
        """The panels of a problem; by default elements are contiguous, in segments of `lanes` 32-bit groups."""
        pixel = pixel or problem.cg
        row = row or problem.s * pixel
        patch = replace(problem, c=problem.groups * problem.r * row, r=1, s=1, pads=(0, 0, 0, 0), dilation=(1, 1))
        form = WordPanels.of(patch, lanes, v, product, segment)
        return cls(form, problem.r, problem.s, problem.cg, pixel, row)

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; `weight` has the type of `form`."""
        k = len(weight)
        filled = np.zeros((k, self.r, self.row), weight.dtype)
        pixels = np.zeros((k, self.r, self.s, self.pixel), weight.dtype)
        pixels[..., : self.channels] = weight.transpose(0, 2, 3, 1)
        filled[..., : self.s * self.pixel] = pixels.reshape(k, self.r, -1)
        return self.form.pack(filled.reshape(k, -1, 1, 1), threads, place)


def _in_order(block: np.ndarray, product: Product) -> np.ndarray:
    """Transpose (panel, v, lane, group, R, S, element, part) to the order in which the dot-product kind reads it."""
    if product.half_sums:
        return block.transpose(0, 4, 5, 3, 7, 6, 1, 2)
    if product.by_lane:
        return block.transpose(0, 4, 5, 3, 7, 1, 6, 2)
    if not product.paired:
        return block.transpose(0, 4, 5, 3, 7, 1, 2, 6)
    panels, v, lanes, count, r, s, elements, _ = block.shape
    cut = block.reshape(panels, v, 2, lanes // 2, count // 2, 2, r, s, elements)
    return cut.transpose(0, 6, 7, 4, 1, 2, 3, 5, 8)


def _as_packed(array: np.ndarray, given: Element, packed: Element) -> np.ndarray:
    """Convert the numbers to the packed type."""
    if given == packed:
        return array
    return to_float32(array, given) if packed == F32 else array.astype(packed.dtype)
