"""Panels of weights whose elements are narrower than float32, in words as the GEMM tile's product takes them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import F32, Element, floats
from cpuconv.kernels.emit.product import BY_NAME, WORD, Product
from cpuconv.kernels.packing.joined_words import join
from cpuconv.kernels.packing.packing import Filters, Packing, Room, room
from cpuconv.kernels.packing.word_parts import in_parts
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem


@dataclass(frozen=True)
class WordPanels(Packing):
    """[group][panel][block of words of C][R][S][word][part][v][lanes of K][elements of a word's part].

    With `rows_first`, [group][panel][R][block of words of C][S]… instead.

    A word has `group` input channels; those, and output channels, that do not exist are zero. The last block
    has as many words as there are, rounded up to what the product takes at once. Of products of two words and two
    output channels: [two words][v][half of the lanes of K][channel][word][elements] within a tap. Of those by single
    elements: [v][elements][lanes of K] of a word.

    Attributes
    ----------
    filters : Filters
    c, r, s : int
        Input channels of a group, kernel height and width.
    group : int
    product : str
        A name in `product.TABLE`.
    w : Element
        Of the weights as given.
    block : int
        Words of a block of C.
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
        """The panels of a problem, by default with blocks of as many words as there are lanes; groups that fill whole
        panels count as one."""
        full = problem.kg % (v * lanes) == 0
        filters = Filters(lanes, v, *((1, problem.k) if full else (problem.groups, problem.kg)))
        group = WORD // problem.types.x.bytes
        kernel = problem.cg, problem.r, problem.s
        return cls(filters, *kernel, group, product.name, problem.types.w, block or lanes, rows_first)

    @property
    def words(self) -> int:
        """Words of the input channels of a group."""
        at_once = BY_NAME[self.product].words_at_once(self.filters.lanes)
        return divide(divide(self.c, self.group), at_once) * at_once

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        filters = self.filters
        rows = self.words * self.r * self.s * BY_NAME[self.product].parts
        return filters.groups * filters.panels * rows * filters.row

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """As `Packing` says; `weight` is of the element `w`, the result of bytes."""
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
    """[vector of K][word of a group][R][S][part][lanes of K][elements], of groups that share vectors.

    Attributes
    ----------
    form : WordPanels
        Of filters of whole words.
    starts : tuple[int, ...]
        For each lane, the element of its first word that is its group's first channel.
    """

    form: WordPanels
    starts: tuple[int, ...]

    @classmethod
    def of(cls, problem: ConvProblem, product: Product, channels: int, starts: tuple[int, ...]) -> GroupPanels:
        """The panels of a problem, each filter read as one of `channels` channels."""
        whole = replace(problem, c=channels, groups=1)
        return cls(WordPanels.of(whole, len(starts), 1, product, 1), starts)

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """As `Packing` says; `weight` is of the element of `form`."""
        filled = np.zeros((len(weight), self.form.c, *weight.shape[2:]), weight.dtype)
        for lane, start in enumerate(self.starts):
            filled[lane :: len(self.starts), start : start + weight.shape[1]] = weight[lane :: len(self.starts)]
        return self.form.pack(filled, threads, place)


@dataclass(frozen=True)
class SpanPanels(Packing):
    """Panels of words of groups as one, each of the words from its own first channel on; zero between groups.

    Attributes
    ----------
    form : WordPanels
        Of one group, of as many channels as the longest panel reads.
    starts : tuple[int, ...]
        For each panel, its first channel.
    channels, kernels : int
        Input and output channels of a group.
    """

    form: WordPanels
    starts: tuple[int, ...]
    channels: int
    kernels: int

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """As `Packing` says; `weight` is of the element of `form`."""
        filters = self.form.filters
        filled = np.zeros((len(weight), self.form.c, *weight.shape[2:]), weight.dtype)
        for k, given in enumerate(weight):
            start = k // self.kernels * self.channels - self.starts[k // (filters.v * filters.lanes)]
            filled[k, start : start + self.channels] = given
        return self.form.pack(filled, threads, place)


@dataclass(frozen=True)
class PatchPanels(Packing):
    """Panels of words whose rows are in the order of patches: (kernel row, kernel column, channel).

    Attributes
    ----------
    form : WordPanels
        Of 1x1 kernels with a channel for each element of a patch.
    r, s : int
        Kernel height and width.
    channels : int
        Of a group.
    pixel, row : int
        Elements of a pixel and of a kernel row in a patch; those behind the channels are zero.
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
        """The panels of a problem; by default elements lie side by side, in segments of as many words as lanes."""
        pixel = pixel or problem.cg
        row = row or problem.s * pixel
        patch = replace(problem, c=problem.groups * problem.r * row, r=1, s=1, pads=(0, 0, 0, 0), dilation=(1, 1))
        form = WordPanels.of(patch, lanes, v, product, segment)
        return cls(form, problem.r, problem.s, problem.cg, pixel, row)

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """As `Packing` says; `weight` is of the element of `form`."""
        k = len(weight)
        filled = np.zeros((k, self.r, self.row), weight.dtype)
        pixels = np.zeros((k, self.r, self.s, self.pixel), weight.dtype)
        pixels[..., : self.channels] = weight.transpose(0, 2, 3, 1)
        filled[..., : self.s * self.pixel] = pixels.reshape(k, self.r, -1)
        return self.form.pack(filled.reshape(k, -1, 1, 1), threads, place)


def _in_order(block: np.ndarray, product: Product) -> np.ndarray:
    """(panel, v, lane, word, R, S, element, part) in the order in which the product reads it."""
    if product.by_lane:
        return block.transpose(0, 4, 5, 3, 7, 1, 6, 2)
    if not product.paired:
        return block.transpose(0, 4, 5, 3, 7, 1, 2, 6)
    panels, v, lanes, count, r, s, elements, _ = block.shape
    cut = block.reshape(panels, v, 2, lanes // 2, count // 2, 2, r, s, elements)
    return cut.transpose(0, 6, 7, 4, 1, 2, 3, 5, 8)


def _as_packed(array: np.ndarray, given: Element, packed: Element) -> np.ndarray:
    """The same numbers in the packed type."""
    if given == packed:
        return array
    return floats(array, given) if packed == F32 else array.astype(packed.dtype)
