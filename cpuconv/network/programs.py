"""The programs of a network, by sizes of inputs, and by the elements of those that decide sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.locks import Lock
from cpuconv.conv.remembering.remembered import Remembered, default_limit
from cpuconv.network.program_builder import Key, ProgramBuilder, ShapeProgram
from cpuconv.network.saved.program import SavedProgram, Shapes, form_digest, packing_of

_LEAST_SHARE = 4  # of the bytes, for programs: runs at once take what they need, whatever is forgotten
_MOST_BYTES = 1 << 30  # of programs that are kept, packed weights aside; less where memory is small


class Programs:
    """Makes programs when they are asked for first, and remembers them; several threads may ask at once.

    Attributes
    ----------
    builder : ProgramBuilder
    making : Lock
        Held while one is made.
    last : Program or None
        The one that was asked for last; it stays, however large.
    """

    def __init__(self, builder: ProgramBuilder, making: Lock) -> None:
        """Remember none yet."""
        self.builder, self.making = builder, making
        self.last: ShapeProgram | None = None
        self._definition = builder.definition
        self._changes = 0  # of arenas, which what is remembered has left room for
        self._most_bytes = min(_MOST_BYTES, default_limit())
        self._remembered = Remembered(self._most_bytes)

    def __len__(self) -> int:
        return len(self._remembered)

    @property
    def nbytes(self) -> int:
        """Bytes of those that are kept, with the memory of all their runs; packed weights are not counted."""
        kept: dict[int, ShapeProgram] = {id(made): made for _, made in self._remembered.items()}
        if self.last is not None:
            kept[id(self.last)] = self.last
        return self.builder.arenas.nbytes + self.builder.shared_bytes + sum(made.nbytes for made in kept.values())

    @property
    def threads(self) -> int:
        """Most threads of a run; where each program decides, of the one that was asked for last."""
        return self.builder.target.threads if self.last is None else self.last.executable.target.threads

    def resize(self, limit: int) -> None:
        """Remember no more than so many bytes from now on, arenas among them."""
        self._most_bytes = limit
        self._leave_arenas_room()

    def clear(self) -> None:
        """Forget all but the last."""
        self._remembered.clear()

    def fitting(self, arrays: Sequence[np.ndarray]) -> tuple[ShapeProgram, list[np.ndarray]]:
        """The program for arrays of all inputs, and the arrays that it is given."""
        shapes = tuple(array.shape for array in arrays)
        if not self._definition.shape_inputs:
            last = self.last  # a small network would notice what `find` takes
            return last if last is not None and last.key.shapes == shapes else self.find(shapes), list(arrays)
        named = dict(zip(self._definition.inputs, arrays, strict=True))
        shape_arrays = {name: named.pop(name) for name in self._definition.shape_inputs}
        return self.find(shapes, shape_arrays), list(named.values())

    def find(self, shapes: Shapes, shape_arrays: Mapping[str, np.ndarray] | None = None) -> ShapeProgram:
        """The program for inputs of these shapes; made at first use, and again if it was forgotten since.

        `shape_arrays` are the arrays of inputs whose elements decide sizes.
        """
        shape_arrays = shape_arrays or {}
        elements = tuple(array.tobytes() for array in shape_arrays.values()) if shape_arrays else ()
        key, last = Key(shapes, elements), self.last
        if last is not None and last.key == key:
            return last
        made: ShapeProgram | None = self._remembered.get(key)
        if made is None:
            with self.making:
                made = self._remembered.get(key)
                if made is None:
                    made = self.builder.build(key, shape_arrays)
                    self.remember(made)
        self.last = made
        return made

    def remember(self, made: ShapeProgram) -> None:
        """Remember a program, as large as it is now, and forget those used least recently for it.

        What it takes changes while other threads run it. Who changes it calls this afterwards, so that the last of them
        leaves the size right.
        """
        if self._changes != self.builder.arenas.changes:
            self._leave_arenas_room()
        while self._remembered.size_of(made.key) != (size := made.nbytes):
            if self._remembered.put(made.key, made, size) is None:
                return

    def _leave_arenas_room(self) -> None:
        self._changes = self.builder.arenas.changes
        left = self._most_bytes - self.builder.arenas.nbytes
        self._remembered.resize(max(left, self._most_bytes // _LEAST_SHARE))

    # --- what is saved --------------------------------------------------------------------------------------------

    def to_save(self) -> Iterator[SavedProgram]:
        """The programs to save: those of this network, and those of the file that it is of.

        Those for elements that decide sizes are left out: they are many, and of one feed each. So are those that may
        have other numbers of threads than others.
        """
        definition = self._definition
        programs = self._made()
        if definition.shape_inputs or (self.builder.auto and not definition.is_fixed):
            return
        for key, made in programs.items():
            ready, _ = definition.prepared(key.shapes, {}, noted=True)
            yield SavedProgram(key.shapes, ready._replace(notes=[*definition.notes, *ready.notes]), made.decisions)
        if definition.saved is not None and definition.follows:
            for shapes in definition.saved.shapes:
                program = None if Key(shapes) in programs else definition.saved.program(shapes)
                if program is not None:
                    yield program

    def kernels(self) -> frozenset[str]:
        """Names of the kernels that the programs of this process were built with."""
        return self.builder.bodies.kernels().union(*(made.kernels for made in self._made().values()))

    def _made(self) -> dict[Any, ShapeProgram]:
        programs: dict[Any, ShapeProgram] = dict(self._remembered.items())
        if self.last is not None:
            programs[self.last.key] = self.last
        return programs

    def forms(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """What a constant is packed to, by form."""
        forms = {} if self._definition.saved is None else self._definition.saved.forms(array)
        packed = self.builder.packed.forms(array)
        return forms | {form_digest(array.shape, form): made for form, made in packed if packing_of(form) is not None}
