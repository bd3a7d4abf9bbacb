"""Reading of saved models: a header is checked before anything is built from it, weights before their first use."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cpuconv.conv.choice.model import Limits, check_options
from cpuconv.conv.choice.target import PRECISION_F32, PRECISIONS, check_precision
from cpuconv.errors import CpuconvError, SourceError
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.network.notes import Mention, Note
from cpuconv.network.saved import kernels
from cpuconv.network.saved.container import Container, checksum
from cpuconv.network.saved.encoding import (
    arrays_of,
    graph_from_plain,
    list_of,
    must_be,
    named,
    sizes_of,
    value_from_plain,
)
from cpuconv.network.saved.program import SavedProgram, Settings, Shapes, form_digest, here, packing_of
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.sizes.prepared import Prepared, Rewriting
from cpuconv.network.sizes.specialise import specialise
from cpuconv.runtime.code.packs.pack_file import Part

if TYPE_CHECKING:
    from cpuconv.images.image import Image
    from cpuconv.images.preprocessing import Numbers

_WRONG = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, MemoryError, RecursionError,
)  # fmt: skip
"""Exceptions of code that processes an invalid graph."""


class BatchedParts(NamedTuple):
    """The saved models of a model that was compiled with `batches`.

    Attributes
    ----------
    parts : dict of int to Saved
        By batch size, in ascending order.
    inputs, outputs : list of str
        Names of the inputs and outputs whose first axis is the batch.
    seconds : dict of int to float
        Measured time of a run by batch size.
    """

    parts: dict[int, Saved]
    inputs: list[str]
    outputs: list[str]
    seconds: dict[int, float]


class Saved:
    """A saved model, read and checked; weights stay in the mapped file.

    Raw weights that a program reads only in a packed form are neither read nor checked. All other weights are checked
    before anything is computed from them.

    Attributes
    ----------
    name : str
    graph : Graph
        The graph as it was read; for a network of fixed sizes, only its inputs and outputs, and a placeholder node.
    settings : Settings
    images : dict of str to Image
    numbers : dict of str to tuple
        Scale and shift per channel of inputs into whose readers those of `images` are folded.
    fits : bool
        Whether it was saved on this CPU with the current packing code; otherwise packed weights are not read.
    batches : BatchedParts or None
        The saved models of several batch sizes; this is that of the largest.

    Raises
    ------
    SourceError
        The file cannot be read or is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], *, trust_kernels: bool = False) -> None:
        file = Container(path)
        self._read(file, file.header, trust_kernels)

    @classmethod
    def _part(cls, file: Container, header: dict[str, Any]) -> Saved:
        """The model of another batch size in the same file."""
        made = cls.__new__(cls)
        made._read(file, {key: value for key, value in header.items() if key != "batches"}, False)
        return made

    def _read(self, file: Container, header: dict[str, Any], trust_kernels: bool) -> None:
        self._file = file
        self.batches: BatchedParts | None = None
        stated = header.pop("kernels", None)
        self._kernels: Part | None = None
        self._arrays: dict[tuple[int, str, tuple[int, ...]], np.ndarray] = {}
        self._numbers: dict[int, int] = {}  # block numbers by identity of arrays
        self._unchecked: set[int] = set()
        try:
            if trust_kernels and stated is not None:
                self._kernels = self._code(*named(must_be(dict, stated), "made", "block"))
            self._begin(header)
            if "batches" in header:
                self.batches = self._batched(must_be(dict, header["batches"]))
        except (CpuconvError, *_WRONG) as error:
            raise self._wrong(error) from error

    def _wrong(self, error: object) -> SourceError:
        return SourceError(f"{self._file.name} cannot be read: {error or type(error).__name__}")

    def _code(self, made: Any, block: Any) -> Part | None:
        """The kernels in the file, if they run here; they have their own checksums."""
        if not kernels.fits(made):
            return None
        if not 0 <= must_be(int, block) < len(self._file):
            raise SourceError("a block that it refers to is missing")
        return kernels.trusted(self._file.view(block))

    def _begin(self, header: Mapping[str, Any]) -> None:
        name, ins, outs, settings, made, graph, programs, packed = named(
            header, "name", "inputs", "outputs", "settings", "made", "graph", "programs", "packed"
        )
        self.name, self.settings = must_be(str, name), _settings(must_be(dict, settings))
        inputs, outputs = _ports(ins), _ports(outs)
        self.fits = must_be(dict, made) == here()
        self._packed = self._forms(packed) if self.fits else {}
        self._raw = {self._file.checksum(raw): raw for raw, _ in self._packed}
        self._programs = {tuple(map(sizes_of, must_be(list, each["shapes"]))): each for each in list_of(dict, programs)}
        self.images, self.numbers = _images(must_be(dict, header.get("images", {})))
        order = tuple(list_of(str, header.get("order", list(outputs))))
        if {*order} != {*outputs}:
            raise SourceError("its outputs differ from its list of outputs")
        if graph is not None:
            self.graph = replace(graph_from_plain(graph, self._array), outputs=order)
            if {each: self.graph.value(each) for each in self.graph.inputs} != inputs:
                raise SourceError("its inputs are not those of its graph")
            return
        if tuple(value.shape for value in inputs.values()) not in self._programs:
            raise SourceError("it has no program for its sizes")
        whole = Node("Network", tuple(inputs), tuple(each for each in outputs if each not in inputs))
        self.graph = Graph(tuple(inputs), order, (whole,), {}, {**outputs, **inputs}, self.name)

    def _batched(self, data: Mapping[str, Any]) -> BatchedParts:
        inputs, outputs, seconds, others = named(data, "inputs", "outputs", "seconds", "others")
        times = {must_be(int, size): must_be(float, time) for size, time in map(partial(must_be, list), seconds)}
        parts = [*(self._part(self._file, header) for header in list_of(dict, others)), self]
        found = BatchedParts(dict(zip(times, parts, strict=True)), list_of(str, inputs), list_of(str, outputs), times)
        if not found.inputs or [*times] != sorted(times) or not all(0 < time < math.inf for time in times.values()):
            raise SourceError("its batch sizes or their times are invalid")
        for size, part in found.parts.items():
            ends = [(part.graph.inputs, found.inputs), (part.graph.outputs, found.outputs)]
            if part.graph.inputs != self.graph.inputs or part.graph.outputs != self.graph.outputs:
                raise SourceError("the programs of its batch sizes have different inputs or outputs")
            if any({*names} - {*every} for every, names in ends) or size < 1:
                raise SourceError("its batched inputs or outputs are missing")
            for name in (*part.graph.inputs, *part.graph.outputs):
                own, other = part.graph.value(name), self.graph.value(name)
                if own.dtype != other.dtype:
                    raise SourceError("the programs of its batch sizes have different types")
                if name not in (*found.inputs, *found.outputs) or own.shape is other.shape is None:
                    continue
                if own.shape is None or own.shape != (size, *(other.shape or ())[1:]):
                    raise SourceError("an input or output does not have its batch size, or other sizes differ")
        return found

    def _forms(self, data: Any) -> dict[tuple[int, str], int]:
        """Packed blocks by raw block and form."""
        table = {}
        for raw, digest, block in must_be(list, data):
            if not all(0 <= must_be(int, number) < len(self._file) for number in (raw, block)):
                raise SourceError("a block that it refers to is missing")
            table[raw, must_be(str, digest)] = block
        return table

    def _array(self, number: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """An unchecked array in a block; equal arguments return the same object."""
        if 0 in shape:
            return np.zeros(shape, dtype)
        made = self._arrays.get((number, dtype.name, shape))
        if made is None:
            if not 0 <= number < len(self._file) or math.prod(shape) * dtype.itemsize != self._file.size(number):
                raise SourceError(f"block {number} does not contain an array {dtype}{list(shape)}")
            made = self._arrays[number, dtype.name, shape] = self._file.view(number).view(dtype).reshape(shape)
            self._numbers[id(made)] = number
        return made

    def _check(self, arrays: Iterable[np.ndarray]) -> None:
        for array in arrays:
            if id(array) in self._numbers:
                self._file.check(self._numbers[id(array)])

    # --- the network --------------------------------------------------------------------------------------------------

    def check_graph(self) -> None:
        """Check the weights of `graph`, before planning for sizes without a program.

        Raises
        ------
        SourceError
            They are damaged.
        """
        self._check(arrays_of(self.graph))

    @property
    def shapes(self) -> list[Shapes]:
        """The input shapes with stored programs."""
        return list(self._programs)

    def program(self, shapes: Shapes) -> SavedProgram | None:
        """The program for inputs of these shapes; None if there is none.

        Raises
        ------
        SourceError
            The program is damaged.
        """
        data = self._programs.get(shapes)
        if data is None:
            return None
        try:
            return self._program(shapes, data)
        except (CpuconvError, *_WRONG) as error:
            raise self._wrong(error) from error

    def decisions(self, shapes: Shapes) -> Decisions:
        """The decisions for inputs of these shapes, which are in `shapes`.

        Raises
        ------
        SourceError
            They are damaged.
        """
        try:
            return Decisions.from_dict(named(self._programs[shapes], "chosen")[0])
        except (CpuconvError, *_WRONG) as error:
            raise self._wrong(error) from error

    def _program(self, shapes: Shapes, data: Mapping[str, Any]) -> SavedProgram:
        graph, suffix, notes, decisions = named(data, "graph", "tail", "notes", "chosen")
        inputs = {
            name: Value(sizes, self.graph.value(name).dtype)
            for name, sizes in zip(self.graph.inputs, shapes, strict=True)
        }
        head = graph_from_plain(graph, self._array)
        self._check(self._read_raw(head))
        if {name: head.value(name) for name in head.inputs} != inputs:
            raise SourceError("the inputs of a program are not those of the network")
        head = specialise(head, strict=self.settings.rewriting.strict)
        if any(value.shape is None for value in head.values.values()):
            raise SourceError("sizes in a program depend on data")
        end = (
            None if suffix is None else self._suffix(suffix, inputs | {name: head.value(name) for name in head.outputs})
        )
        if {*self.graph.outputs} - {*head.outputs, *(() if end is None else end.outputs)}:
            raise SourceError("a program does not have the outputs of the network")
        return SavedProgram(
            shapes, Prepared(head, list(map(_note, must_be(list, notes))), end), Decisions.from_dict(decisions)
        )

    def _suffix(self, data: Any, known: Mapping[str, Value]) -> Graph:
        """The dynamic suffix of a program with these values."""
        suffix = graph_from_plain(data, self._array)
        self._check(arrays_of(suffix))
        if any(suffix.value(name) != known.get(name) for name in suffix.inputs):
            raise SourceError("the dynamic suffix of a program does not fit its main part")
        return suffix

    # --- packed weights -----------------------------------------------------------------------------------------------

    def _read_raw(self, graph: Graph) -> list[np.ndarray]:
        """The arrays of a graph, except those that one node alone reads and that have packed forms.

        The blocks of the latter are recorded, until it is known whether they are read packed.
        """
        replaced, users = {raw for raw, _ in self._packed}, Counter[int | None]()
        for name in (*graph.outputs, *(name for node in graph.nodes for name in node.inputs)):
            users[self._numbers.get(id(graph.constants.get(name)))] += 1
        raw = list(arrays_of(graph))[len(graph.constants) :]  # arrays in attributes, such as bodies of nodes
        for array in graph.constants.values():
            number = self._numbers.get(id(array))
            if number in replaced and users[number] == 1:
                self._unchecked.add(number)
            else:
                raw.append(array)
        return raw

    def packed(self, array: np.ndarray, form: Any) -> np.ndarray | None:
        """A constant in a packed form, mapped and checked; None if the file has none; then the constant is checked.

        Raises
        ------
        SourceError
            The packed form or the constant is damaged.
        """
        block = self._block(array, form)
        if block is None:
            self._check([array])
            return None
        self._file.check(block)
        self._unchecked.discard(self._numbers.get(id(array), -1))
        return self._file.view(block).view(FLOAT32)

    def _block(self, array: np.ndarray, form: Any) -> int | None:
        """The block of a packed form of a constant, which is in the file, or equal to one in the file."""
        packing = packing_of(form)
        if packing is None or not self._packed:
            return None
        number = self._numbers.get(id(array))
        if number is None:
            number = self._raw.get(checksum(array), -1)
        block = self._packed.get((number, form_digest(array.shape, form)))
        return block if block is not None and self._file.size(block) == packing.size else None

    def forms(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """The packed forms in the file of one of its constants, by `form_digest`."""
        number = self._numbers.get(id(array))
        blocks = {digest: block for (raw, digest), block in self._packed.items() if raw == number}
        for block in blocks.values():
            self._file.check(block)
        return {digest: self._file.view(block) for digest, block in blocks.items()}

    @contextmanager
    def built(self) -> Iterator[None]:
        """Context in which a program is built; afterwards the weights that were read raw are checked.

        Raises
        ------
        SourceError
            The weights are damaged, or the program cannot be built.
        """
        try:
            yield
            while self._unchecked:
                self._file.check(self._unchecked.pop())
        except (CpuconvError, *_WRONG) as error:
            raise self._wrong(error) from error


def _ports(data: Any) -> dict[str, Value]:
    return {name: value_from_plain(value) for name, value in must_be(dict, data).items()}


def _images(data: Mapping[str, Any]) -> tuple[dict[str, Image], dict[str, Numbers]]:
    if not data:
        return {}, {}
    from cpuconv.images.image import Image  # deferred: few models take pictures

    pairs = {name: must_be(list, each) for name, each in data.items()}
    images = {name: Image.from_dict(must_be(dict, image)) for name, (image, _) in pairs.items()}
    stated = {name: must_be(list, numbers) for name, (_, numbers) in pairs.items() if numbers is not None}
    return images, {
        name: tuple((float(scale), float(shift)) for scale, shift in numbers) for name, numbers in stated.items()
    }


def _settings(data: Mapping[str, Any]) -> Settings:
    threads, strategy, limits, strict, skipped = named(data, "threads", "strategy", "limits", "strict", "skip_passes")
    kept, precision = Limits(**must_be(dict, limits)), data.get("precision", PRECISION_F32)  # absent in older files
    each = {name: must_be(str, stated) for name, stated in must_be(dict, data.get("node_precisions", {})).items()}
    check_options(strategy, kept.accuracy, kept.workspace, kept.reproducible)
    for stated in (precision, *each.values()):
        if stated not in PRECISIONS:
            check_precision(stated)
    if must_be(int, threads) < 1 or not _are_rewrites(list_of(str, skipped)):
        raise SourceError("its compile options are invalid")
    return Settings(threads, strategy, kept, Rewriting(must_be(bool, strict), tuple(skipped)), precision, each)


def _are_rewrites(names: Collection[str]) -> bool:
    if not names:
        return True
    from cpuconv.graph.passes import NAMES  # deferred: most saved models need no rewrites

    return {*names} <= {*NAMES}


def _note(data: Any) -> Note:
    rewrite, old, new = must_be(list, data)
    mentions = [tuple(Mention(*list_of(str, each)) for each in must_be(list, nodes)) for nodes in (old, new)]
    if not mentions[0]:
        raise SourceError("a note of a rewrite names no rewritten nodes")
    return Note(must_be(str, rewrite), *mentions)
