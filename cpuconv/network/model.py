"""A network, ready to run: its inputs and outputs, and what callers do with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from autotune.locks import Lock
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError, kind_of, must
from cpuconv.graph.ir import Value
from cpuconv.graph.stopping import Stop
from cpuconv.memory.mapped_files import check_unchanged
from cpuconv.network.definition import Definition
from cpuconv.network.ports import Port, arrays_for, converted, fed
from cpuconv.network.programs import Programs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cpuconv.network.reports.explain import Explanation
    from cpuconv.network.reports.precisions import PrecisionTable
    from cpuconv.network.reports.profile import Profile


class Opened(NamedTuple):
    """A model in which some of another one's defaults are inputs, and the arrays that these have where none is fed."""

    model: Model
    arrays: Mapping[str, np.ndarray]


class Model:
    """A network; made by `cpuconv.compile` or `cpuconv.load`. Several threads may run it at once.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        Names, shapes (symbols kept) and dtypes. An output that the model lists twice is there twice.
    defaults : tuple of Port
        Inputs that have an initializer, which a feed may leave out.
    """

    def __init__(
        self,
        definition: Definition,
        programs: Programs,
        outputs: Mapping[str, Value],
        reopened: Callable[[Collection[str]], Opened],
    ) -> None:
        """Hold what `compiling` made, and outputs as far as they are known.

        `reopened` makes the model in which some of the defaults are inputs.
        """
        self._definition, self._programs, self._reopened = definition, programs, reopened
        self._precisions: PrecisionTable | None = None
        self._opened: Opened | None = None
        self._opening = Lock(brief=False)
        listed = [(name, outputs[name]) for name in definition.order]
        self.inputs, self.outputs, self.defaults = (
            tuple(Port(name, value.shape, value.dtype) for name, value in ends)
            for ends in (definition.inputs.items(), listed, definition.defaults.items())
        )

    def __repr__(self) -> str:
        ends = [", ".join(map(str, ports)) for ports in (self.inputs, self.outputs)]
        return f"<cpuconv.Model {self._definition.name}: {ends[0]} -> {ends[1]}>"

    def __reduce__(self) -> Any:
        raise TypeError("A cpuconv.Model cannot be pickled or copied: model.save(path) and cpuconv.load(path) do so.")

    def __call__(self, x: Any) -> NDArray[Any] | Any:
        """The result for a network of one input: an array if it has one output, else a dict of them.

        Parameters
        ----------
        x : array
            Of the input's shape and dtype. One that is not C-contiguous is copied.

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
            An array for each input, of its shape and dtype. One that is not C-contiguous is copied. Of `defaults` any
            may be fed too; the first feed of one compiles the network anew, with it as an input.
        out : mapping of str to numpy.ndarray, or None
            C-contiguous arrays for some outputs, which overlap neither inputs nor each other; the others are made.
            None for outputs whose sizes depend on elements.
        stop : callable or None
            Asked between kernels, from the thread that runs, such as `is_set` of a `threading.Event`: something true
            ends the run.
        convert : bool
            Whether arrays of another dtype are converted to that of their input: images of uint8, or what Python and
            NumPy make of numbers, float64. Otherwise they are an error.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs by name.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A feed or an output array has a wrong name, rank, size or dtype; the message names it.
        SourceError
            For these sizes the nodes do not fit together, or a run does not fit into free memory.
        RunStopped
            `stop` ended it.

        Notes
        -----
        Ctrl-C ends a run of the main thread in the same places as `stop`: between kernels and between nodes that
        references compute, those in the bodies of `Loop` and `Scan` too. The arrays of `out` may have been written to;
        the model can run again.

        NaN and infinities reach whatever is computed from them. Winograd and FFT convolutions spread them within a tile
        or a plane of their image; `accuracy="exact"` takes none of these. Denormals are numbers like others.
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
            if made.tail is not None:
                known = dict(zip(self._definition.inputs, arrays, strict=True))
                outputs = made.tail.finished({**known, **outputs}, stop)
        finally:
            self._programs.remember(made)  # for another number of callers, or for other sizes that were found
        return outputs

    def profile(self, feed: Mapping[str, Any], runs: int = 20, *, watch: bool = False) -> Profile:
        """Time each operator alone, and whole runs.

        Parameters
        ----------
        feed : mapping of str to array
            As for `run`.
        runs : int
            How often each is timed; medians are reported.
        watch : bool
            Whether to note too who did what when in a run, by kernels that look at the clock before and after.

        Returns
        -------
        Profile
            Seconds of each operator and of whole runs; prints itself, and has `.to_dict()`.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            `runs` is no integer from 1 on, or the feed is wrong, as for `run`.
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
        if made.tail is None:
            return head
        values = {**dict(zip(self._definition.inputs, arrays, strict=True)), **outputs}
        return combined([head, *made.tail.profiles(values, int(runs))])

    def _opened_for(self, feed: Mapping[str, Any]) -> Opened | None:
        """The model in which the defaults that are fed are inputs; None where none is fed."""
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
        """What was fused, folded and removed; layouts and algorithm of each operator; bytes of arena and weights.

        It is of the sizes that the model states or that ran last.

        Returns
        -------
        Explanation
            Prints itself, and has `.to_dict()`.

        Raises
        ------
        SourceError
            Sizes are open, and nothing has run yet.
        """
        made = self._programs.last or self._programs.find(self._definition.fixed_shapes())
        explanation = self._programs.builder.explained(made)
        return explanation if made.tail is None else made.tail.explained(explanation)

    def precision_table(self) -> PrecisionTable:
        """How precisions were chosen: of each operator precision, error and time, and what the other one would change.

        Returns
        -------
        PrecisionTable
            Prints itself, and has `.to_dict()`.

        Raises
        ------
        SourceError
            They were not chosen by samples: the model was not made by `cpuconv.compile` with ``precision="auto"``.
        """
        if self._precisions is None:
            wanted = "made by cpuconv.compile with precision='auto', to have a table of precisions"
            raise SourceError(must(self._definition.name, wanted, "made otherwise"))
        return self._precisions

    def with_table(self, precisions: PrecisionTable) -> Model:
        """The model, with the report of how its precisions were chosen."""
        self._precisions = precisions
        return self

    @property
    def threads(self) -> int:
        """Most threads of a run; where the model decides, of the sizes that ran last."""
        return self._programs.threads

    @property
    def nbytes(self) -> int:
        """Bytes of programs that are kept, and of the memory of their runs; packed weights are not counted."""
        return self._programs.nbytes

    @property
    def has_run(self) -> bool:
        """Whether sizes are known that `explain` can tell of."""
        return self._programs.last is not None

    def save(self, path: str | os.PathLike[str], *, kernels: bool = False) -> None:
        """Write the model to a file that `cpuconv.load` reads, without the package onnx.

        It holds the network, what was chosen for the sizes that ran, and the weights, raw and packed. It replaces a
        file of that name at once, when it is whole.

        Parameters
        ----------
        path : path
            Of the file, in a folder that is there.
        kernels : bool
            Whether the machine code of the kernels goes into the file too, for `load(path, trust_kernels=True)` on a
            CPU that has the features of this one: then nothing is compiled there. Kernels that are kept nowhere, as
            where there is no cache folder, are left out.

        Raises
        ------
        OSError
            The file cannot be written.
        SourceError
            The file that the model was compiled from has changed or is gone, or the network has something that cannot
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
            settings = replace(definition.settings, threads=self.threads)  # the fastest number, if it was looked for
            names = programs.kernels() if kernels else None
            write(Path(path), ends, graph, settings, programs.to_save(), programs.forms, names)
