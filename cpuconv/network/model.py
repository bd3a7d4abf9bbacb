"""Model: a compiled network with its inputs and outputs, as callers use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from baselib.locks import Lock
from baselib.screen import Column, Table, as_html
from baselib.text import count_of
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError, kind_of, must
from cpuconv.graph.ir import Value
from cpuconv.graph.stopping import Stop
from cpuconv.memory.mapped_files import check_unchanged
from cpuconv.network.definition import Definition
from cpuconv.network.ports import Port, arrays_for, converted, fed
from cpuconv.network.program_cache import ProgramCache
from cpuconv.runtime.streams import Streams
from cpuconv.runtime.threads import maximum_threads

if TYPE_CHECKING:
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from cpuconv.network.reports.explain import Explanation
    from cpuconv.network.reports.precisions import PrecisionTable
    from cpuconv.network.reports.profile import Profile


class Opened(NamedTuple):
    """A model in which some defaults of another one are inputs, and their default arrays."""

    model: Model
    arrays: Mapping[str, np.ndarray]


class Model:
    """A network, made by `cpuconv.compile` or `cpuconv.load`. Several threads may run it concurrently.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        Names, shapes (with symbols) and dtypes. An output that the model lists twice occurs twice.
    defaults : tuple of Port
        Inputs that have an initializer, and may be omitted from a feed.
    """

    def __init__(
        self,
        definition: Definition,
        programs: ProgramCache,
        outputs: Mapping[str, Value],
        reopened: Callable[[Collection[str]], Opened],
    ) -> None:
        """Store the parts that `compiling` made, and the outputs as far as they are known.

        `reopened` compiles the model in which given defaults are inputs.
        """
        self._definition, self._programs, self._reopened = definition, programs, reopened
        self._precisions: PrecisionTable | None = None
        self._opened: Opened | None = None
        self._opening = Lock(brief=False)
        self._made_by: Callable[[], Model] | None = None
        self._stated_streams: int | None = None
        self._background: Streams | None = None
        listed = [(name, outputs[name]) for name in definition.order]
        self.inputs, self.outputs, self.defaults = (
            tuple(Port(name, value.shape, value.dtype) for name, value in ends)
            for ends in (definition.inputs.items(), listed, definition.defaults.items())
        )

    def __repr__(self) -> str:
        ends = [", ".join(map(str, ports)) for ports in (self.inputs, self.outputs)]
        return f"<cpuconv.Model {self._definition.name}: {ends[0]} -> {ends[1]}>"

    def _repr_html_(self) -> str:
        """Return the inputs and outputs as a table, for a notebook."""
        sides = {"input": self.inputs, "output": self.outputs}
        rows = [(side, *str(port).split(": ", 1)) for side, ports in sides.items() for port in ports]
        table = Table([Column("tensor"), Column("name"), Column("type")], rows)
        return as_html(iter([f"cpuconv.Model {self._definition.name}, {count_of(self.threads, 'thread')}", table]))

    def __reduce__(self) -> Any:
        if self._made_by is None:
            raise TypeError(
                "A cpuconv.Model of a ModelProto, a Graph or precision='auto' cannot be pickled or copied:"
                " model.save(path) and cpuconv.load(path) do so."
            )
        return self._made_by, ()

    def with_origin(self, made_by: Callable[[], Model] | None) -> Model:
        """Attach the call that made this model, by which a pickle makes it again, and return the model."""
        self._made_by = made_by
        return self

    def with_streams(self, count: int) -> Model:
        """Attach the number of streams, and return the model."""
        self._stated_streams = count
        return self

    def __call__(self, x: Any) -> NDArray[Any] | Any:
        """Run a network of one input: return an array if it has one output, else a dict of arrays.

        Parameters
        ----------
        x : array
            Array of the input's shape and dtype. It is copied if it is not C-contiguous.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            The network has another number of inputs, or the array has a wrong rank, size or dtype.
        """
        if len(self.inputs) != 1:
            names = ", ".join(port.name for port in self.inputs)
            raise ArgumentError(must("x", f"a dict of {names}, given to run()", "one array"))
        if isinstance(x, Mapping):
            raise ArgumentTypeError(must("x", "an array: a dict of arrays goes to run()", kind_of(x)))
        results = self.run({self.inputs[0].name: x})
        return next(iter(results.values())) if len(results) == 1 else results

    def run(
        self,
        feed: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | None = None,
        *,
        stop: Stop | None = None,
        convert: bool = False,
    ) -> dict[str, np.ndarray]:
        """Run the network.

        Parameters
        ----------
        feed : mapping of str to array
            An array for each input, of its shape and dtype. Arrays that are not C-contiguous are copied. Any of
            `defaults` may be fed too; the first feed of one recompiles the network with it as an input.
        out : mapping of str to numpy.ndarray, or None
            C-contiguous arrays for some outputs, which overlap neither inputs nor each other; the others are allocated.
            Not possible for outputs whose sizes depend on elements.
        stop : callable or None
            Called between kernels, on the running thread; a true result ends the run. An example is `is_set` of a
            `threading.Event`.
        convert : bool
            Whether to convert arrays of other dtypes to those of their inputs, such as uint8 images, or float64, the
            default of Python and NumPy. Otherwise other dtypes are an error.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs by name.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A feed or an output array has a wrong name, rank, size or dtype; the message names it.
        SourceError
            The nodes do not fit together for these sizes, or the run does not fit into free memory.
        RunStopped
            `stop` ended the run.

        Notes
        -----
        Ctrl-C ends a run of the main thread at the same points as `stop`: between kernels, and between nodes that
        references compute, also in the bodies of `Loop` and `Scan`. The arrays of `out` may have been written to; the
        model can run again.

        NaN and infinities propagate to all values computed from them. Winograd and FFT convolutions spread them within
        a tile or a channel plane of their image; `accuracy="exact"` uses neither. Denormals are not flushed to zero.
        """
        if stop is not None and not callable(stop):
            raise ArgumentTypeError(must("stop", "a callable without arguments, or None", kind_of(stop)))
        if self.defaults and (opened := self._opened_for(feed)) is not None:
            return opened.model.run({**opened.arrays, **feed}, out, stop=stop, convert=convert)
        arrays = fed(self.inputs, converted(self.inputs, feed) if convert else feed)
        made, given = self._programs.fitting(arrays)
        outputs = arrays_for(made.executable.outputs, {} if out is None else out, arrays)
        try:
            made.executable.run(given, list(outputs.values()), stop=stop)
            if made.suffix is not None:
                known = dict(zip(self._definition.inputs, arrays, strict=True))
                outputs = made.suffix.finished({**known, **outputs}, stop)
        finally:
            self._programs.remember(made)  # its size changes with the number of callers and with sizes of its suffix
        return outputs

    def submit(self, feed: Mapping[str, Any]) -> Future[dict[str, np.ndarray]]:
        """Run the network in the background: in one of `streams` threads, after the runs submitted before.

        Parameters
        ----------
        feed : mapping of str to array
            As for `run`; do not write into the arrays until the run is done.

        Returns
        -------
        concurrent.futures.Future
            Its `result()` is the dict of outputs, or raises what `run` raises; `cancel()` works until the run begins.
        """
        with self._opening:
            if self._background is None:
                self._background = Streams(self.streams)
        return self._background.submit(self.run, feed)

    async def run_async(self, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the network in the background, as `submit` does, and return its outputs to a coroutine."""
        import asyncio  # deferred: takes 20 ms

        return await asyncio.wrap_future(self.submit(feed))

    def profile(self, feed: Mapping[str, Any], runs: int = 20, *, watch: bool = False) -> Profile:
        """Time each operator separately, and whole runs.

        Parameters
        ----------
        feed : mapping of str to array
            As for `run`.
        runs : int
            Number of timed repetitions; medians are reported.
        watch : bool
            Whether to record a timeline of each worker in a run as well, by timestamps before and after each kernel.

        Returns
        -------
        Profile
            Seconds per operator and per run. It prints itself, and has `.to_dict()`.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            `runs` is not an integer of at least 1, or the feed is wrong, as for `run`.
        """
        from cpuconv.network.reports.profile import combined, profile

        if isinstance(runs, bool) or not hasattr(runs, "__index__") or int(runs) < 1:
            raise ArgumentError(must("runs", "an integer, 1 or more", repr(runs)))
        if self.defaults and (opened := self._opened_for(feed)) is not None:
            return opened.model.profile({**opened.arrays, **feed}, runs, watch=watch)
        arrays = fed(self.inputs, feed)
        made, given = self._programs.fitting(arrays)
        made = self._programs.builder.detailed(made)
        outputs = arrays_for(made.executable.outputs, {}, arrays)
        head = profile(made.executable, given, list(outputs.values()), int(runs), watch=watch)
        if made.suffix is None:
            return head
        values = {**dict(zip(self._definition.inputs, arrays, strict=True)), **outputs}
        return combined([head, *made.suffix.profiles(values, int(runs))])

    def _opened_for(self, feed: Mapping[str, Any]) -> Opened | None:
        """The model in which the defaults in the feed are inputs; None if it has none of them."""
        names = {port.name for port in self.defaults if port.name in feed} if isinstance(feed, Mapping) else set()
        if not names:
            return None
        opened = self._opened
        if opened is None or not names <= opened.arrays.keys():
            with self._opening:
                opened = self._opened
                if opened is None or not names <= opened.arrays.keys():
                    opened = self._opened = self._reopened(names.union(opened.arrays if opened else ()))
        return opened

    def explain(self) -> Explanation:
        """Explain fused, folded and removed nodes, layouts and algorithms per operator, and arena and weight sizes.

        It describes the sizes that the model states, or those that ran last.

        Returns
        -------
        Explanation
            It prints itself, and has `.to_dict()`.

        Raises
        ------
        SourceError
            Sizes are open, and nothing has run yet.
        """
        made = self._programs.last or self._programs.find(self._definition.fixed_shapes())
        explanation = self._programs.builder.explained(made)
        return explanation if made.suffix is None else made.suffix.explained(explanation)

    def precision_table(self) -> PrecisionTable:
        """Report the selection of precisions: precision, error and time per operator, and the effect of the other one.

        Returns
        -------
        PrecisionTable
            It prints itself, and has `.to_dict()`.

        Raises
        ------
        SourceError
            The model was not made by `cpuconv.compile` with ``precision="auto"``.
        """
        if self._precisions is None:
            wanted = "made by cpuconv.compile with precision='auto', to have a table of precisions"
            raise SourceError(must(self._definition.name, wanted, "another model"))
        return self._precisions

    def with_table(self, precisions: PrecisionTable) -> Model:
        """Attach the report of the selection of precisions, and return the model."""
        self._precisions = precisions
        return self

    @property
    def threads(self) -> int:
        """Maximum number of threads of a run; where it depends on the sizes, that of the sizes that ran last."""
        return self._programs.threads

    @property
    def streams(self) -> int:
        """Number of concurrent runs that occupy all cores, or that ``hint="throughput"`` selected."""
        return self._stated_streams or max(1, maximum_threads() // self.threads)

    @property
    def nbytes(self) -> int:
        """Size of cached programs and of the memory of their runs, in bytes; packed weights are not counted."""
        return self._programs.nbytes

    @property
    def has_run(self) -> bool:
        """Whether the network has run, so that `explain` can describe its sizes."""
        return self._programs.last is not None

    def save(self, path: str | os.PathLike[str], *, kernels: bool = False) -> None:
        """Write the model to a file that `cpuconv.load` reads, without the package onnx.

        The file contains the network, the selected layouts and algorithms of the sizes that ran, and the weights, raw
        and packed. It atomically replaces an existing file of that name.

        Parameters
        ----------
        path : path
            Path of the file, in an existing folder.
        kernels : bool
            Whether to include the machine code of the kernels, for `load(path, trust_kernels=True)` on a CPU with the
            features of this one: then nothing is compiled there. Kernels that are not stored anywhere, such as without
            a cache folder, are omitted.

        Raises
        ------
        OSError
            The file cannot be written.
        SourceError
            The file that the model was compiled from has changed or is missing, or the network has a part that cannot
            be saved; the message names it.
        """
        from cpuconv.network.saved.writing import write

        definition, programs = self._definition, self._programs
        with programs.making:
            graph = definition.original() if definition.defaults else definition.graph
            if graph is not None:
                check_unchanged(graph.constants.values())
                graph = replace(graph, values={**graph.values, **definition.inputs})
            if definition.saved is not None:
                definition.saved.check_graph()
            ends = (
                definition.name,
                definition.inputs,
                {port.name: Value(port.shape, port.dtype) for port in self.outputs},
                definition.order,
            )
            settings = replace(definition.settings, threads=self.threads)  # the fastest number, if it was determined
            names = programs.kernels() if kernels else None
            write(Path(path), ends, graph, settings, programs.to_save(), programs.forms, names)
