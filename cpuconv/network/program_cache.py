"""Cache of a network's programs, by input shapes and by the elements of the inputs that decide sizes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from baselib.locks import Lock
from cpuconv.conv.caches.lru_cache import LruCache, default_limit
from cpuconv.network.program_builder import Key, ProgramBuilder, ShapeProgram
from cpuconv.network.saved.program import SavedProgram, Shapes, form_digest, packing_of

_MIN_SHARE = 2  # programs keep at least 1 / 2 of the limit, as arenas of concurrent runs cannot be evicted
_MAX_BYTES = 1 << 27  # maximum size of cached programs, in bytes, without packed weights; less on small machines

_Recorded = tuple[Callable[[], ShapeProgram | None], int, int]  # program, contexts, changes of arenas at `remember`
_NOTHING: _Recorded = (lambda: None, 0, 0)


class ProgramCache:
    """Build programs at first use, and cache them; several threads may request them concurrently.

    Attributes
    ----------
    builder : ProgramBuilder
    making : Lock
        Held while a program is built.
    last : ShapeProgram or None
        The most recently requested program; it is never evicted, whatever its size.
    """

    def __init__(self, builder: ProgramBuilder, making: Lock) -> None:
        """Start with an empty cache."""
        self.builder, self.making = builder, making
        self.last: ShapeProgram | None = None
        self._definition = builder.definition
        self._recorded = _NOTHING
        self._changes = 0  # change counter of the arenas, at the last adjustment of the cache's limit
        self._most_bytes = min(_MAX_BYTES, default_limit())
        self._cache = LruCache(self._most_bytes)

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def nbytes(self) -> int:
        """Size of cached programs, with the memory of all their runs, in bytes; packed weights are not counted."""
        kept: dict[int, ShapeProgram] = {id(made): made for _, made in self._cache.items()}
        if self.last is not None:
            kept[id(self.last)] = self.last
        return self.builder.arenas.nbytes + self.builder.shared_bytes + sum(made.nbytes for made in kept.values())

    @property
    def threads(self) -> int:
        """Maximum number of threads of a run; where programs differ, that of the most recently requested one."""
        return self.builder.target.threads if self.last is None else self.last.executable.target.threads

    def resize(self, limit: int) -> None:
        """Set the limit of programs and arenas together, in bytes."""
        self._most_bytes, self._recorded = limit, _NOTHING
        self._leave_arenas_room()

    def clear(self) -> None:
        """Drop all programs but the last."""
        self._recorded = _NOTHING
        self._cache.clear()

    def fitting(self, arrays: Sequence[np.ndarray]) -> tuple[ShapeProgram, Sequence[np.ndarray]]:
        """The program for arrays of all inputs, and the arrays that it takes as inputs."""
        shapes = tuple([array.shape for array in arrays])  # a list takes half the time of a generator
        if not self._definition.shape_inputs:
            last = self.last  # fast path, as the time of `find` is measurable in small networks
            return last if last is not None and last.key.shapes == shapes else self.find(shapes), arrays
        named = dict(zip(self._definition.inputs, arrays, strict=True))
        shape_arrays = {name: named.pop(name) for name in self._definition.shape_inputs}
        return self.find(shapes, shape_arrays), list(named.values())

    def find(self, shapes: Shapes, shape_arrays: Mapping[str, np.ndarray] | None = None) -> ShapeProgram:
        """The program for inputs of these shapes; built at first use, and again if it was evicted.

        `shape_arrays` are the arrays of inputs whose elements decide sizes.
        """
        shape_arrays = shape_arrays or {}
        elements = tuple(array.tobytes() for array in shape_arrays.values()) if shape_arrays else ()
        key, last = Key(shapes, elements), self.last
        if last is not None and last.key == key:
            return last
        made: ShapeProgram | None = self._cache.get(key)
        if made is None:
            with self.making:
                made = self._cache.get(key)
                if made is None:
                    made = self.builder.build(key, shape_arrays)
                    self.remember(made)
        self.last = made
        return made

    def remember(self, made: ShapeProgram) -> None:
        """Cache a program with its current size, and evict the least recently used ones to make room.

        The size may change while other threads run the program. Each thread that changes it calls this afterwards, so
        that the recorded size is finally correct.
        """
        arenas, contexts = self.builder.arenas.changes, len(made.executable.contexts)
        if made.suffix is None and self._recorded[1:] == (contexts, arenas) and self._recorded[0]() is made:
            return
        self._recorded = _NOTHING
        if self._changes != arenas:
            self._leave_arenas_room()
        while self._cache.size_of(made.key) != (size := made.nbytes):
            if self._cache.put(made.key, made, size) is None:
                return
        self._recorded = weakref.ref(made), contexts, arenas

    def _leave_arenas_room(self) -> None:
        self._changes = self.builder.arenas.changes
        left = self._most_bytes - self.builder.arenas.nbytes
        self._cache.resize(max(left, self._most_bytes // _MIN_SHARE))

    # --- saving ---------------------------------------------------------------------------------------------------

    def to_save(self) -> Iterator[SavedProgram]:
        """The programs to save: those of this network, and those of its saved model.

        Programs for elements that decide sizes are omitted: they are many, each for one feed. Programs whose numbers of
        threads may differ are omitted too.
        """
        definition = self._definition
        programs = self._made()
        if definition.shape_inputs or definition.conditions or (self.builder.auto and not definition.is_fixed):
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
        programs: dict[Any, ShapeProgram] = dict(self._cache.items())
        if self.last is not None:
            programs[self.last.key] = self.last
        return programs

    def forms(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """The packed forms of a constant, by digest of the form."""
        forms = {} if self._definition.saved is None else self._definition.saved.forms(array)
        packed = self.builder.packed.forms(array)
        return forms | {form_digest(array.shape, form): made for form, made in packed if packing_of(form) is not None}
