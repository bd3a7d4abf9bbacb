"""ONNX Runtime's Python interface for a network: programs that use it run unchanged.

The interface is that of `onnxruntime.InferenceSession` (onnxruntime/python/onnxruntime_inference_collection.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.api import network as api
from cpuconv.conv.choice.target import precision_named
from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.integrations.binding import IOBinding, OrtValue, view
from cpuconv.integrations.element_types import text_of
from cpuconv.integrations.output_shapes import output_shapes
from cpuconv.integrations.run_options import errors_of_both, stop_of
from cpuconv.integrations.session_options import CPU_PROVIDER, PRECISION, SessionOptions, entry, warn_of_no_effect
from cpuconv.network.model import Model
from cpuconv.network.ports import Port
from cpuconv.network.saved.container import is_saved
from cpuconv.network.saved.reading import Saved
from cpuconv.network.sizes.specialise import with_sizes
from cpuconv.reading.decoding import Metadata
from cpuconv.reading.onnx_reader import read_with_metadata
from cpuconv.runtime.streams import Streams, reported
from cpuconv.runtime.threads import AUTO, maximum_threads

if TYPE_CHECKING:
    from cpuconv.option_types import Precision


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a session.

    Attributes
    ----------
    name : str
    type : str
        The type as text, such as ``tensor(float)``.
    shape : list of (int, str or None)
        Sizes; a symbol or None where the model leaves a size open.
    """

    name: str
    type: str
    shape: list[int | str | None]


class InferenceSession:
    """A network behind the interface of `onnxruntime.InferenceSession`.

    Parameters
    ----------
    path_or_bytes : path or bytes
        An ONNX model, or the path of a model that `cpuconv.Model.save` wrote.
    sess_options : SessionOptions or None
        Options of cpuconv or ONNX Runtime. `intra_op_num_threads` and the entry `PRECISION` have an effect. So do
        sizes for symbols where they can be read, which ONNX Runtime's object does not allow.
    providers, provider_options, **ignored
        Accepted for compatibility. The network always runs on the CPU; a warning says so if `providers` omits it.

    Raises
    ------
    ArgumentTypeError
        The source is neither a path nor bytes.
    SourceError
        The model cannot be read.

    Warns
    -----
    CpuconvWarning
        `providers` omits the CPU's, or the options request a file that is not written: a profile or an optimised model.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **ignored: Any,
    ) -> None:
        self._options = SessionOptions() if sess_options is None else sess_options
        sizes = getattr(self._options, "free_dimensions", {})
        wanted = getattr(self._options, "intra_op_num_threads", 0)
        threads = wanted if wanted == AUTO or wanted > 0 else None
        idle = getattr(self._options, "idle_bytes", None)
        warn_of_no_effect(self._options, providers)
        self.background = Streams(_async_threads(getattr(self._options, "async_threads", 0)), "run_async")
        stated = entry(self._options, PRECISION)
        precision = None if stated is None else cast("Precision", precision_named(stated, PRECISION))
        self._shapes: Mapping[str, Sequence[int | str | None]] = {}  # of outputs that the model leaves open
        if isinstance(path_or_bytes, (str, os.PathLike)) and is_saved(path_or_bytes):
            self._model, self._metadata = _loaded(path_or_bytes, sizes, threads, idle, precision)
        else:
            graph, self._metadata = read_with_metadata(path_or_bytes)
            graph = with_sizes(graph, sizes)
            self._shapes = output_shapes(graph)
            self._model = api.compile(graph, threads=threads, precision=precision or "float32", idle_bytes=idle)
        self._required = [port.name for port in self._model.inputs]
        self._inputs = (*self._model.inputs, *self._model.defaults)
        self._dtypes = {port.name: port.dtype for port in self._inputs}
        self._names = [port.name for port in self._model.outputs]

    # --- running --------------------------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[np.ndarray]:
        """Run the network.

        Parameters
        ----------
        output_names : sequence of str, or None
            Names of the outputs to return, in order; None or an empty sequence: all.
        input_feed : mapping of str to array
            An array per input, of its shape and dtype; a list is converted to this dtype.
        run_options : RunOptions or None
            Options of cpuconv or ONNX Runtime: `terminate` has an effect.

        Returns
        -------
        list of numpy.ndarray
            New C-contiguous arrays, one per requested output.

        Raises
        ------
        ValueError
            An input is missing.
        ArgumentError, ArgumentTypeError
            A name, rank, size or dtype is wrong; the message names it. If ONNX Runtime is loaded, the error is also
            its `InvalidArgument`.
        RunStopped
            `run_options.terminate` ended the run. If ONNX Runtime is loaded, the error is also its `Fail`.
        """
        with errors_of_both():
            names = self._requested(output_names)
            results = self._model.run(self._fed(input_feed), stop=stop_of(run_options))
        given = [results[name] for name in dict.fromkeys(names)]
        return given if len(given) == len(names) else [results[name].copy() for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[np.ndarray], Any, str], object],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run the network in the background, in one of at most `SessionOptions.async_threads` threads.

        Parameters
        ----------
        output_names, input_feed, run_options
            As for `run`.
        callback : callable
            Called in that thread with the results, `user_data` and an empty text; after a failure, with no results and
            the error's text.
        user_data : any

        Raises
        ------
        ValueError
            An input is missing.
        """
        self._check_inputs(input_feed)
        given = (output_names, input_feed, run_options)
        self.background.submit(reported, deliver, self.run, given, callback, user_data)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[OrtValue]:
        """Run the network on `OrtValue` objects; the results are `OrtValue` objects too."""
        return [OrtValue(array) for array in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        """Return an object that binds arrays to inputs and outputs, for `run_with_iobinding`."""
        return IOBinding(self._inputs, self._model.outputs)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run the network on bound inputs, and write the requested outputs.

        Raises
        ------
        ValueError
            An input or every output is missing.
        ArgumentError, ArgumentTypeError
            A rank, size or dtype is wrong; the message names it.
        RunStopped
            As for `run`; bound outputs may be partly written.
        """
        wanted = iobinding.wanted
        with errors_of_both():
            if not wanted:
                raise ArgumentError(must("iobinding", "a binding with outputs", "one without"))
            out = {name: array for name, array in wanted.items() if array is not None}
            results = self._model.run(self._fed(iobinding.feed), out, stop=stop_of(run_options))
        iobinding.results = [results[name] for name in wanted]

    def _requested(self, names: Sequence[str] | None) -> Sequence[str]:
        """Return the names of the requested outputs."""
        if isinstance(names, str):
            raise ArgumentTypeError(must("output_names", "a list of names or None", repr(names)))
        for name in names or ():
            if name not in self._names:
                raise ArgumentError(must("output_names", f"names among {', '.join(self._names)}", repr(name)))
        return names or self._names

    def _fed(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the feed as arrays, after checking that it has every input."""
        self._check_inputs(feed)
        return {name: self._array(name, given) for name, given in feed.items()}

    def _check_inputs(self, feed: Mapping[str, Any]) -> None:
        missing = [name for name in self._required if name not in feed]
        if missing:
            raise ArgumentError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")

    def _array(self, name: str, given: Any) -> Any:
        """Convert a list to an array of the input's dtype, and an `OrtValue` to its memory; return others unchanged."""
        if isinstance(given, (list, tuple)):
            try:
                return np.asarray(given, self._dtypes.get(name))
            except (TypeError, ValueError) as error:
                raise ArgumentTypeError(must(f"feed[{name!r}]", "an array of numbers", error)) from error
        return view(given) if hasattr(given, "data_ptr") and hasattr(given, "device_name") else given

    # --- properties of a session -----------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Return the name, shape and type of each input."""
        return [self._described(port) for port in self._model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the name, shape and type of each output."""
        return [self._described(port, self._shapes.get(port.name)) for port in self._model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return name, shape and type of each initializer that is listed as an input, so that a feed may replace it."""
        return [self._described(port) for port in self._model.defaults]

    def _described(self, port: Port, shape: Sequence[int | str | None] | None = None) -> NodeArg:
        """Return name, type and shape of an input or output, open sizes by the symbols of the model."""
        known = port.shape or () if shape is None else shape
        symbols = self._metadata.symbols.get(port.name, ())
        stated = symbols if len(symbols) == len(known) else ("",) * len(known)
        sizes = [size if isinstance(size, int) else name or size for size, name in zip(known, stated, strict=True)]
        return NodeArg(port.name, text_of(port.dtype), sizes)

    def get_modelmeta(self) -> Metadata:
        """Return the model's metadata."""
        return self._metadata

    def get_session_options(self) -> Any:
        """Return the session's options."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return the execution providers: the CPU's."""
        return [CPU_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options per provider: none."""
        return {CPU_PROVIDER: {}}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Do nothing, as everything runs on the CPU; warn if `providers` omits the CPU's."""
        warn_of_no_effect(None, providers)

    def end_profiling(self) -> str:
        """Return the file name of the profile: empty, as no profile is written."""
        return ""

    def get_profiling_start_time_ns(self) -> int:
        """Return the start time of profiling: 0, as nothing is profiled."""
        return 0

    def disable_fallback(self) -> None:
        """Do nothing: there is no fallback."""

    enable_fallback = disable_fallback


def _async_threads(wanted: int) -> int:
    """Return the given number of threads for background runs, or the number of cores."""
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise ArgumentError(must("async_threads", "an integer, 0 or more", repr(wanted)))
    return wanted or maximum_threads()


def deliver(
    run: Callable[..., list[np.ndarray]],
    given: tuple[Any, ...],
    callback: Callable[[list[np.ndarray], Any, str], object],
    user_data: Any,
) -> None:
    """Run, and pass the results or the error's text to a callback of `run_async`."""
    try:
        results, error = run(*given), ""
    except Exception as failure:  # any failure is passed to the callback
        results, error = [], str(failure) or type(failure).__name__
    callback(results, user_data, error)


def _loaded(
    path: str | os.PathLike[str],
    sizes: Mapping[str, int],
    threads: int | None,
    idle: int | None,
    precision: Precision | None,
) -> tuple[Model, Metadata]:
    """Load a saved model; sizes for symbols apply to inputs all of whose sizes they fix."""
    graph = with_sizes(Saved(path).graph, sizes)
    known = {name: graph.value(name) for name in graph.inputs}
    shapes: dict[str, Any] = {name: value.shape for name, value in known.items() if value.concrete}
    model = api.load(path, threads=threads, input_shapes=shapes, precision=precision, idle_bytes=idle)
    return model, Metadata(graph_name=graph.name)
