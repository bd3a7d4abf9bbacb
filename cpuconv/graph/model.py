"""A network, ready to run: its programs by sizes of inputs, and what callers hand over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError, must
from cpuconv.graph.executable import Executable
from cpuconv.graph.explain import Explanation
from cpuconv.graph.interpret import interpret
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.layout import lay_out
from cpuconv.graph.lowering import Target
from cpuconv.graph.packed import Packed
from cpuconv.graph.prepared import Rewriting, prepared
from cpuconv.graph.profile import Profile, profile
from cpuconv.graph.specialise import bound_inputs
from cpuconv.memory.locks import Lock
from cpuconv.memory.remembered import Remembered, default_limit
from cpuconv.problem.arrays import as_float32_view
from cpuconv.solvers.shared.base import aligned

_FLOAT32 = np.dtype(np.float32)
Shapes = tuple[tuple[int, ...], ...]
_MOST_BYTES = 1 << 30  # of programs that are kept, packed weights aside; less where memory is small


@dataclass(frozen=True)
class Port:
    """An input or output of a network.

    Attributes
    ----------
    name : str
    shape : tuple of (int, str or None), or None
        Sizes; a symbol, or None, where the model leaves one open. None: not even the rank is known.
    dtype : numpy.dtype or None
        None: not known before sizes are.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: np.dtype | None

    def __str__(self) -> str:
        return f"{self.name}: {Value(self.shape, self.dtype)}"


class Model:
    """A network; made by `cpuconv.compile`. Several threads may run it at once.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        Names, shapes (symbols kept) and dtypes.
    threads : int
        Most threads of a run.
    """

    def __init__(
        self, graph: Graph, target: Target, shapes: Mapping[str, Sequence[int]], options: Rewriting | None = None
    ) -> None:
        self._known = bound_inputs(graph, shapes)
        self._name, self._target, self._options = graph.name, target, options or Rewriting()
        self._graph: Graph | None = graph
        self.threads = target.threads
        self.inputs = tuple(_port(name, value) for name, value in self._known.items())
        self.outputs = tuple(_port(name, graph.value(name)) for name in graph.outputs)
        self._packed = Packed()
        self._programs = Remembered(min(_MOST_BYTES, default_limit()))
        self._last: tuple[Shapes, _Made] | None = None  # stays, however large
        self._making = Lock()
        if all(value.concrete for value in self._known.values()):
            made = self._for(self._fixed_shapes())
            known = made.executable.outputs
            self.outputs = tuple(_port(name, known.get(name, graph.value(name))) for name in graph.outputs)

    def __repr__(self) -> str:
        ends = [", ".join(map(str, ports)) for ports in (self.inputs, self.outputs)]
        return f"<cpuconv.Model {self._name}: {ends[0]} -> {ends[1]}>"

    def __call__(self, x: Any) -> Any:
        """The result for a network of one input: an array if it has one output, else a dict of them.

        Raises
        ------
        ArgumentError
            The network has another number of inputs.
        """
        if len(self.inputs) != 1:
            names = ", ".join(port.name for port in self.inputs)
            raise ArgumentError(must("x", f"a dict of {names}, given to run()", "one array"))
        results = self.run({self.inputs[0].name: x})
        return next(iter(results.values())) if len(results) == 1 else results

    def run(self, feed: Mapping[str, Any], out: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Run the network.

        Parameters
        ----------
        feed : mapping of str to array
            An array for each input, of its shape and dtype. One that is not C-contiguous is copied.
        out : mapping of str to numpy.ndarray, or None
            C-contiguous arrays for some outputs, which overlap neither inputs nor each other; the others are made.
            None for outputs whose sizes depend on elements.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs by name.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A feed or an output array has a wrong name, rank, size or dtype; the message names it.

        Notes
        -----
        NaN and infinities reach whatever is computed from them. Winograd and FFT convolutions spread them within a tile
        or a plane of their image; `accuracy="exact"` takes none of these. Denormals are numbers like others.
        """
        arrays = self._fed(feed)
        made = self._for(tuple(array.shape for array in arrays))
        outputs = _outputs(made.executable, {} if out is None else out, arrays)
        before = made.executable.nbytes
        made.executable.run(arrays, list(outputs.values()))
        if made.executable.nbytes != before:  # memory for one more caller at a time
            self._keep(tuple(array.shape for array in arrays), made)
        if made.tail is None:
            return outputs
        return made.finished({**dict(zip(self._known, arrays, strict=True)), **outputs})

    def profile(self, feed: Mapping[str, Any], runs: int = 20) -> Profile:
        """Time each operator alone, and whole runs.

        Parameters
        ----------
        feed : mapping of str to array
            As for `run`.
        runs : int
            How often each is timed; medians are reported.
        """
        if isinstance(runs, bool) or not hasattr(runs, "__index__") or int(runs) < 1:
            raise ArgumentError(must("runs", "an integer, 1 or more", repr(runs)))
        arrays = self._fed(feed)
        made = self._for(tuple(array.shape for array in arrays))
        return profile(made.executable, arrays, list(_outputs(made.executable, {}, arrays).values()), int(runs))

    def explain(self) -> Explanation:
        """What was fused, folded and removed; layouts and algorithm of each operator; bytes of arena and weights.

        It is of the sizes that the model states or that ran last.

        Raises
        ------
        SourceError
            Sizes are open, and nothing has run yet.
        """
        return (self._for(self._fixed_shapes()) if self._last is None else self._last[1]).explanation

    # --- programs by sizes ----------------------------------------------------------------------------------------

    def _fed(self, feed: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays of a feed, in order, checked as far as the model states them."""
        if not isinstance(feed, Mapping):
            raise ArgumentTypeError(must("feed", "a dict of arrays by input name", f"a {type(feed).__name__}"))
        names = [port.name for port in self.inputs]
        for name in feed:
            if name not in names:
                raise ArgumentError(must("feed", f"arrays for {', '.join(names) or 'nothing'}", f"one for {name!r}"))
        for name in names:
            if name not in feed:
                raise ArgumentError(must("feed", f"arrays for {', '.join(names)}", f"without {name!r}"))
        return [_array(port, feed[port.name]) for port in self.inputs]

    def _fixed_shapes(self) -> Shapes:
        """The sizes of the inputs, where model and arguments state them all.

        Raises
        ------
        SourceError
            Some are open.
        """
        for name, value in self._known.items():
            if not value.concrete:
                expected = "of fixed sizes: run the model first, or state them in 'input_shapes'"
                raise SourceError(must(name, expected, value))
        return tuple(_sizes(value) for value in self._known.values())

    def _for(self, shapes: Shapes) -> _Made:
        """The program for inputs of these shapes; made at first use, and again if it was forgotten since."""
        last = self._last
        if last is not None and last[0] == shapes:
            return last[1]
        made: _Made | None = self._programs.get(shapes)
        if made is None:
            with self._making:
                made = self._programs.get(shapes)
                if made is None:
                    made = self._make(shapes)
                    self._keep(shapes, made)
        self._last = shapes, made
        return made

    def _keep(self, shapes: Shapes, made: _Made) -> None:
        """Keep a program, as large as it is now, and forget those used least recently for it."""
        self._programs.put(shapes, made, made.executable.nbytes)

    def _make(self, shapes: Shapes) -> _Made:
        named = dict(zip(self._known, shapes, strict=True))
        if self._graph is None:  # all sizes are fixed, and the program is made
            wrong = next(name for name, sizes in named.items() if sizes != _sizes(self._known[name]))
            raise ArgumentError(must(f"feed[{wrong!r}]", f"of shape {_sizes(self._known[wrong])}", named[wrong]))
        for name, value in self._known.items():
            if not value.fits(named[name]):
                raise ArgumentError(must(f"feed[{name!r}]", f"of a shape that fits {value}", named[name]))
        bound_inputs(self._graph, named, "feed")  # equal symbols, equal sizes
        order = self._graph.outputs
        graph, notes, tail = prepared(self._graph, named, self._options)
        laid = lay_out(graph, self._target)
        executable = Executable(laid, self._target, self._packed)
        if all(value.concrete for value in self._known.values()):
            self._graph = None  # raw weights are not kept beside packed ones
        return _Made(executable, Explanation.of(self._name, laid, executable, notes, tail), tail, order)


def _sizes(value: Value) -> tuple[int, ...]:
    return tuple(int(size) for size in value.shape or () if size is not None)


def _port(name: str, value: Value) -> Port:
    return Port(name, value.shape, value.dtype)


def _array(port: Port, given: Any) -> np.ndarray:
    """An array for an input, C-contiguous."""
    name = f"feed[{port.name!r}]"
    if port.dtype == _FLOAT32:
        array = as_float32_view(given, name)
    else:
        array = given if isinstance(given, np.ndarray) else np.asarray(given)
        if array.dtype != port.dtype:
            raise ArgumentTypeError(must(name, f"of dtype {port.dtype}", array.dtype))
    if port.shape is not None and array.ndim != len(port.shape):
        raise ArgumentError(must(name, f"of rank {len(port.shape)}", f"of rank {array.ndim}, {array.shape}"))
    return np.ascontiguousarray(array).reshape(array.shape)


def _outputs(
    executable: Executable, out: Mapping[str, np.ndarray], inputs: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """An array for each output: those given, checked, and new ones."""
    if not isinstance(out, Mapping):
        raise ArgumentTypeError(must("out", "a dict of arrays by output name", f"a {type(out).__name__}"))
    for name in out:
        if name not in executable.outputs:
            raise ArgumentError(must("out", f"arrays for {', '.join(executable.outputs)}", f"one for {name!r}"))
    arrays: dict[str, np.ndarray] = {}
    for name, value in executable.outputs.items():
        if name in out:
            arrays[name] = _checked(name, out[name], value, inputs, arrays)
        else:
            arrays[name] = aligned(_sizes(value), value.dtype)
    return arrays


def _checked(
    name: str, array: np.ndarray, value: Value, inputs: Sequence[np.ndarray], others: Mapping[str, np.ndarray]
) -> np.ndarray:
    """An array that an output can be written to."""
    label = f"out[{name!r}]"
    if not isinstance(array, np.ndarray) or array.dtype != value.dtype:
        raise ArgumentTypeError(
            must(label, f"a NumPy array of {value.dtype}", getattr(array, "dtype", type(array).__name__))
        )
    if array.shape != _sizes(value):
        raise ArgumentError(must(label, f"of shape {_sizes(value)}", array.shape))
    if not array.flags.carray:
        raise ArgumentError(must(label, "writable and C-contiguous", f"of strides {array.strides}"))
    if any(np.may_share_memory(array, other) for other in inputs):
        raise ArgumentError(must(label, "memory of its own", "memory that an input occupies"))
    for other, taken in others.items():
        if np.may_share_memory(array, taken):
            raise ArgumentError(must(label, "memory of its own", f"memory that out[{other!r}] occupies"))
    return array


@dataclass(frozen=True)
class _Made:
    """A program, how it came about, and what references compute behind it; the names of all outputs."""

    executable: Executable
    explanation: Explanation
    tail: Graph | None
    outputs: tuple[str, ...]

    def finished(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs, from the inputs and what the program computed."""
        assert self.tail is not None
        results = interpret(self.tail, {name: arrays[name] for name in self.tail.inputs})
        return {name: np.array(results[name], order="C") if name in results else arrays[name] for name in self.outputs}
