"""Model: a compiled network with its inputs and outputs, as callers use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter as _now
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, kind_of, must
from cpuconv.graph.ir import Value
from cpuconv.graph.stopping import Stop
from cpuconv.memory.mapped_files import check_unchanged
from cpuconv.network.definition import Definition
from cpuconv.network.model_reports import ModelReports
from cpuconv.network.ports import Port, converted, fed
from cpuconv.network.program_cache import ProgramCache
from cpuconv.network.reports.stats import LATEST
from cpuconv.network.variants import BranchModels, DefaultModels, Opened

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cpuconv.images.geometry import Geometry
    from cpuconv.images.image import Image
    from cpuconv.images.preprocessing import Numbers, Pictures
    from cpuconv.network.saved.container import Blocks


class Model(ModelReports):
    """A network, made by `cpuconv.compile` or `cpuconv.load`. Several threads may run it concurrently.

    Attributes
    ----------
    inputs, outputs : tuple of Port
        Names, shapes (with symbols) and dtypes. An output that the model lists twice occurs twice.
    defaults : tuple of Port
        Inputs that have an initializer, and may be omitted from a feed.
    images : mapping of str to Image
        Inputs that take pictures, by name. In `inputs` they have the dtype in which pictures are written.
    pictures : Pictures or None
        The conversion of pictures.
    batches : mapping of int to float
        Measured seconds of a run by batch size, if it was compiled with `batches`; else empty.
    """

    def __init__(
        self,
        definition: Definition,
        programs: ProgramCache,
        outputs: Mapping[str, Value],
        reopened: Callable[[Collection[str]], Opened[Model]],
        branches: BranchModels[Model] | None,
    ) -> None:
        """Store the parts that `compiling` made, and the outputs as far as they are known.

        `reopened` compiles the model in which given defaults are inputs; `branches` run instead of `programs`.
        """
        super().__init__()
        self._definition, self._programs, self._branches = definition, programs, branches
        self._opened = DefaultModels(definition.defaults, reopened)
        self._made_by: Callable[[], Model] | None = None
        self.images: Mapping[str, Image] = {}
        self.pictures: Pictures | None = None
        self.batches: Mapping[int, float] = {}
        listed = [(name, outputs[name]) for name in definition.order]
        self.inputs, self.outputs, self.defaults = (
            tuple(Port(name, value.shape, value.dtype) for name, value in ends)
            for ends in (definition.inputs.items(), listed, definition.defaults.items())
        )

    def __repr__(self) -> str:
        ends = [", ".join(map(str, ports)) for ports in (self.inputs, self.outputs)]
        return f"<cpuconv.Model {self._definition.name}: {ends[0]} -> {ends[1]}>"

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

    @overload
    def run(
        self,
        feed: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | None = None,
        *,
        stop: Stop | None = None,
        convert: bool = False,
        info: Literal[False] = False,
    ) -> dict[str, np.ndarray]: ...
    @overload
    def run(
        self,
        feed: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | None = None,
        *,
        stop: Stop | None = None,
        convert: bool = False,
        info: Literal[True],
    ) -> tuple[dict[str, np.ndarray], dict[str, list[Geometry]]]: ...
    def run(
        self,
        feed: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | None = None,
        *,
        stop: Stop | None = None,
        convert: bool = False,
        info: bool = False,
    ) -> Any:
        """Run the network.

        Parameters
        ----------
        feed : mapping of str to array
            An array for each input, of its shape and dtype. Arrays that are not C-contiguous are copied. Any of
            `defaults` may be fed too; the first feed of one recompiles the network with it as an input. Inputs in
            `images` take pictures of any size instead: one, or a list of them, or an array with a first axis of them.
        out : mapping of str to numpy.ndarray, or None
            C-contiguous arrays for some outputs, which overlap neither inputs nor each other; the others are allocated.
            Not possible for outputs whose sizes depend on elements.
        stop : callable or None
            Called between kernels, on the running thread; a true result ends the run. An example is `is_set` of a
            `threading.Event`.
        convert : bool
            Whether to convert arrays of other dtypes to those of their inputs, such as uint8 images, or float64, the
            default of Python and NumPy. Otherwise other dtypes are an error.
        info : bool
            Whether to return where pictures are in their inputs, too.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs by name; with `info`, also a dict of lists of `Geometry`, one per picture, by input name.

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
        a tile or a channel plane of their image; `accuracy="exact"` uses neither. Denormals are not flushed to zero,
        except by products of bfloat16 on AMX.
        """
        if stop is not None and not callable(stop):
            raise ArgumentTypeError(must("stop", "a callable without arguments, or None", kind_of(stop)))
        begun = _now()
        try:
            if self.pictures is None:
                places: dict[str, list[Geometry]] = {}
                outputs = self._run(feed, out, stop, convert)
            else:
                with self.pictures.fed(feed) as (arrays, places):
                    outputs = self._run(arrays, out, stop, convert)
        except BaseException:
            self._log.fail()
            raise
        new = self._log.new  # without a call of a function, whose time is measurable in small networks
        new.append(_now() - begun)
        if len(new) > LATEST:
            self._log.count()
        return (outputs, places) if info else outputs

    def prepare(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return a feed with arrays in place of pictures, as `run` converts them.

        Parameters
        ----------
        feed : mapping of str to array
            As for `run`.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A picture is not of the form that `images` states.
        """
        return dict(feed) if self.pictures is None else self.pictures.arrays(feed)

    def _run(
        self, feed: Mapping[str, Any], out: Mapping[str, np.ndarray] | None, stop: Stop | None, convert: bool
    ) -> dict[str, np.ndarray]:
        """`run` for arrays of the inputs' shapes."""
        if self.defaults and (opened := self._opened.find(feed)) is not None:
            return opened.model.run({**opened.arrays, **feed}, out, stop=stop, convert=convert)
        arrays = fed(self.inputs, converted(self.inputs, feed) if convert else feed)
        if self._branches is not None:
            return self._branches.find(arrays).run(
                dict(zip(self._definition.inputs, arrays, strict=True)), out, stop=stop
            )
        made, given = self._programs.fitting(arrays)
        executable = made.executable
        found = executable.output_arrays
        outputs = found.new() if out is None else found.given(out, arrays)
        try:
            executable.run(given, list(outputs.values()), stop=stop)
            if made.suffix is not None:
                known = dict(zip(self._definition.inputs, arrays, strict=True))
                outputs = made.suffix.finished({**known, **outputs}, stop)
        finally:
            self._programs.remember(made)  # its size changes with the number of callers and with sizes of its suffix
        return outputs

    def with_images(self, images: Mapping[str, Image], numbers: Mapping[str, Numbers] | None = None) -> Model:
        """Let inputs take pictures, by name, and return the model.

        `numbers` are scale and shift per channel of inputs into whose readers those of `images` are folded; other
        images are then refused, as are those that do not fit the inputs.
        """
        if images:
            if numbers is None and self.pictures is not None and self.pictures.numbers:
                raise ArgumentError(must("images", "left out: the model has been compiled for others", "given"))
            from cpuconv.images.preprocessing import Pictures  # deferred: few programs need it

            ports = {port.name: (port.shape, port.dtype) for port in self.inputs}
            self.pictures = Pictures(images, ports, self._definition.settings.threads, numbers or {})
            self.images = dict(images)
        return self

    @property
    def threads(self) -> int:
        """Maximum number of threads of a run; where it depends on the sizes, that of the sizes that ran last."""
        return self._ran._programs.threads

    @property
    def nbytes(self) -> int:
        """Size of cached programs and of the memory of their runs, in bytes; packed weights are not counted."""
        return sum(model._programs.nbytes for model in self._parts())

    @property
    def has_run(self) -> bool:
        """Whether the network has run, so that `explain` can describe its sizes."""
        return self._ran._programs.last is not None

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
        from cpuconv.network.saved.writing import Blocks, write

        blocks = Blocks()
        header = self._header(blocks)
        names = frozenset().union(*(each._programs.kernels() for each in self._parts())) if kernels else None
        write(Path(path), blocks, header, names, None if self.pictures is None else self.pictures.to_dict())

    def _header(self, blocks: Blocks) -> dict[str, Any]:
        """The header of a saved model; its arrays are added to the blocks."""
        from cpuconv.network.saved.writing import model_header

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
            return model_header(blocks, ends, graph, settings, programs.to_save(), programs.forms)
