"""ONNX Runtime's client interface over a network: programs that call it run unchanged.

The interface is that of `onnxruntime.InferenceSession` (onnxruntime/python/onnxruntime_inference_collection.py).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from autotune.data_classes import dataclass
from autotune.text import suggested
from cpuconv.api import network as api
from cpuconv.conv.choice.target import precision_named
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, must
from cpuconv.integrations.background import Background
from cpuconv.integrations.binding import IOBinding, OrtValue, view
from cpuconv.integrations.element_types import text_of
from cpuconv.integrations.run_options import stop_of, terminating
from cpuconv.network.model import Model
from cpuconv.network.ports import Port
from cpuconv.network.saved.container import is_saved
from cpuconv.network.saved.reading import Saved
from cpuconv.network.sizes.specialise import with_sizes
from cpuconv.reading.decoding import Metadata
from cpuconv.reading.onnx_reader import read_with_metadata
from cpuconv.runtime.threads import AUTO, maximum_threads

if TYPE_CHECKING:
    from cpuconv.option_types import Precision

_PROVIDER = "CPUExecutionProvider"
_OWN = "session.cpuconv."
PRECISION = f"{_OWN}precision"
"""The entry of a session that is the `precision` of `compile`."""


class SessionOptions:
    """What a session is made with: the attributes of ONNX Runtime's, and two of cpuconv's; others cannot be set.

    Attributes
    ----------
    intra_op_num_threads : int
        Most threads of a run; 0: `get_num_threads()`; more than there are cores: as many as there are; "auto": as
        many as are fastest for the network.
    async_threads : int
        Most runs of `run_async` at once; 0: as many as there are cores.
    idle_bytes : int or None
        As for `compile`.

    Notes
    -----
    The other attributes of ONNX Runtime's are kept and have no effect; where a user would miss what they do, a session
    warns.

    Raises
    ------
    AttributeError
        An attribute that there is not is set, as in ONNX Runtime.
    """

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.async_threads = 0
        self.idle_bytes: int | None = None
        self.inter_op_num_threads = 0
        self.graph_optimization_level: Any = 99
        self.execution_mode: Any = 0
        self.execution_order: Any = 0
        self.enable_cpu_mem_arena = self.enable_mem_pattern = self.enable_mem_reuse = True
        self.use_per_session_threads = True
        self.enable_profiling = self.use_deterministic_compute = False
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.optimized_model_filepath, self.profile_file_prefix = "", "onnxruntime_profile_"
        self.free_dimensions: dict[str, int] = {}
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if "_entries" in vars(self) and name not in vars(self):
            known = [each for each in vars(self) if not each.startswith("_")]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{suggested(name, known)}")
        super().__setattr__(name, value)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """State the size that a symbol of the model's inputs stands for."""
        self.free_dimensions[name] = size

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; "session.cpuconv.precision" has an effect: it is the `precision` of `compile`.

        Raises
        ------
        ArgumentError
            There is no such entry of cpuconv's; those of ONNX Runtime's may have any name.
        """
        if key.startswith(_OWN) and key != PRECISION:
            raise ArgumentError(must("key", f"{PRECISION}, of those that start with {_OWN}", repr(key)))
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was added."""
        if key not in self._entries:
            raise ArgumentError(must("key", "one of an entry that was added", repr(key)))
        return self._entries[key]


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a session.

    Attributes
    ----------
    name : str
    shape : list of (int, str or None)
        Sizes; a symbol, or None, where the model leaves one open.
    type : str
        As in ``tensor(float)``.
    """

    name: str
    shape: list[int | str | None]
    type: str


class InferenceSession:
    """A network behind the interface of `onnxruntime.InferenceSession`.

    Parameters
    ----------
    path_or_bytes : path or bytes
        An ONNX model; or the path of a model that `cpuconv.Model.save` wrote.
    sess_options : SessionOptions or None
        Ours or ONNX Runtime's. `intra_op_num_threads` counts, and the entry `PRECISION`; sizes for symbols count where
        they can be read, which ONNX Runtime's object does not allow.
    providers, provider_options, **ignored
        Taken for the interface's sake: everything runs on the CPU, which a warning says where `providers` leave it out.

    Raises
    ------
    ArgumentTypeError
        The source is neither a path nor bytes.
    SourceError
        The model cannot be read.

    Warns
    -----
    CpuconvWarning
        Providers without the CPU's are asked for, or a file that is not written: a profile, or an optimised model.
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
        _tell_of_no_effect(self._options, providers)
        self._background = Background(_async_threads(getattr(self._options, "async_threads", 0)))
        stated = _entry(self._options, PRECISION)
        precision = None if stated is None else cast("Precision", precision_named(stated, PRECISION))
        if isinstance(path_or_bytes, (str, os.PathLike)) and is_saved(path_or_bytes):
            self._model, self._metadata = _loaded(path_or_bytes, sizes, threads, idle, precision)
        else:
            graph, self._metadata = read_with_metadata(path_or_bytes)
            graph = with_sizes(graph, sizes)
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
            Outputs to give, in order; None, or none at all: all of them.
        input_feed : mapping of str to array
            An array for each input, of its shape and dtype; a list is made one of that dtype.
        run_options : RunOptions or None
            Ours or ONNX Runtime's: `terminate` counts.

        Returns
        -------
        list of numpy.ndarray
            New C-contiguous arrays, one for each output that is wanted.

        Raises
        ------
        ValueError
            An input is missing.
        ArgumentError, ArgumentTypeError
            A name, rank, size or dtype is wrong; the message says which.
        RunStopped
            `run_options.terminate` ended the run. Where ONNX Runtime is loaded, it is a `Fail` of that too.
        """
        names = self._asked(output_names)
        with terminating():
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
            Called in that thread with the results, `user_data` and an empty text; with no results and a text where
            the run failed.
        user_data : any
        """

        def go() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:  # whatever it is, the callback hears of it
                results, error = [], str(failure) or type(failure).__name__
            callback(results, user_data, error)

        self._background.submit(go)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[OrtValue]:
        """Run the network on `OrtValue` objects; results are such objects too."""
        return [OrtValue(array) for array in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        """An object to bind arrays to inputs and outputs with, for `run_with_iobinding`."""
        return IOBinding(self._inputs, self._model.outputs)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run the network on bound inputs, and write the outputs that were asked for.

        Raises
        ------
        ValueError
            An input or every output is missing.
        ArgumentError, ArgumentTypeError
            A rank, size or dtype is wrong; the message says which.
        RunStopped
            As for `run`; what was bound to outputs may have been written to.
        """
        wanted = iobinding.wanted
        if not wanted:
            raise ArgumentError(must("iobinding", "a binding with outputs", "one without"))
        out = {name: array for name, array in wanted.items() if array is not None}
        with terminating():
            results = self._model.run(self._fed(iobinding.feed), out, stop=stop_of(run_options))
        iobinding.results = [results[name] for name in wanted]

    def _asked(self, names: Sequence[str] | None) -> Sequence[str]:
        """The outputs that a call wants."""
        if isinstance(names, str):
            raise ArgumentTypeError(must("output_names", "a list of names or None", repr(names)))
        for name in names or ():
            if name not in self._names:
                raise ArgumentError(must("output_names", f"names among {', '.join(self._names)}", repr(name)))
        return names or self._names

    def _fed(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """A feed with every input, as arrays."""
        missing = [name for name in self._required if name not in feed]
        if missing:
            raise ArgumentError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
        return {name: self._array(name, given) for name, given in feed.items()}

    def _array(self, name: str, given: Any) -> Any:
        """A list as an array of the input's dtype, an `OrtValue` as its memory, all else as it is."""
        if isinstance(given, (list, tuple)):
            try:
                return np.asarray(given, self._dtypes.get(name))
            except (TypeError, ValueError) as error:
                raise ArgumentTypeError(must(f"feed[{name!r}]", "an array of numbers", error)) from error
        return view(given) if hasattr(given, "data_ptr") and hasattr(given, "device_name") else given

    # --- what a session is ------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Name, shape and type of each input."""
        return [_described(port) for port in self._model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Name, shape and type of each output."""
        return [_described(port) for port in self._model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Name, shape and type of each initializer that a feed may replace: those that the model lists as inputs."""
        return [_described(port) for port in self._model.defaults]

    def get_modelmeta(self) -> Metadata:
        """What the model says about itself."""
        return self._metadata

    def get_session_options(self) -> Any:
        """The options that the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """What runs the network: the CPU."""
        return [_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options of what runs the network: none."""
        return {_PROVIDER: {}}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Nothing: everything runs on the CPU, which a warning says where they leave it out."""
        _tell_of_no_effect(None, providers)

    def end_profiling(self) -> str:
        """The name of the file of a profile: none, as nothing is profiled."""
        return ""

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began: it does not."""
        return 0

    def disable_fallback(self) -> None:
        """Nothing: there is nothing to fall back to."""

    enable_fallback = disable_fallback


_NO_EFFECT = {  # attributes of options that ask for what there is not, and what there is
    "enable_profiling": "no profile is written: `cpuconv profile MODEL`, or `cpuconv.Model.profile`, times operators",
    "optimized_model_filepath": "no optimised model is written: `cpuconv compile MODEL -o FILE` writes one of its own",
}


def _tell_of_no_effect(options: Any, providers: Sequence[Any] | None) -> None:
    """Warn of what a session is asked for and does not do."""
    told = [f"{name} has no effect: {instead}" for name, instead in _NO_EFFECT.items() if getattr(options, name, None)]
    names = [each if isinstance(each, str) else each[0] for each in providers or ()]
    if names and _PROVIDER not in names:
        told.append(f"everything runs on the CPU, none of the providers asked for does: {', '.join(names)}")
    for text in told:
        warnings.warn(text, CpuconvWarning, stacklevel=3)


def _async_threads(wanted: int) -> int:
    """A stated number of threads for runs in the background, or as many as there are cores."""
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise ArgumentError(must("async_threads", "an integer, 0 or more", repr(wanted)))
    return wanted or maximum_threads()


def _entry(options: Any, key: str) -> str | None:
    """An entry of the options, ours or ONNX Runtime's; None where it was not added."""
    try:
        return str(options.get_session_config_entry(key))
    except (AttributeError, ArgumentError, RuntimeError):  # the last one is what ONNX Runtime's raise
        return None


def _loaded(
    path: str | os.PathLike[str],
    sizes: Mapping[str, int],
    threads: int | None,
    idle: int | None,
    precision: Precision | None,
) -> tuple[Model, Metadata]:
    """A saved model, with sizes for symbols as far as they leave no size of an input open."""
    graph = with_sizes(Saved(path).graph, sizes)
    known = {name: graph.value(name) for name in graph.inputs}
    shapes: dict[str, Any] = {name: value.shape for name, value in known.items() if value.concrete}
    model = api.load(path, threads=threads, input_shapes=shapes, precision=precision, idle_bytes=idle)
    return model, Metadata(graph_name=graph.name)


def _described(port: Port) -> NodeArg:
    return NodeArg(port.name, list(port.shape or ()), text_of(port.dtype))
