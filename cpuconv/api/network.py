"""The calls that make a network ready to run: compile, load."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cpuconv.api.options import tuner_for
from cpuconv.api.precision import AUTO, check_callable, check_left_out, feeds_of, tolerance_of
from cpuconv.conv.choice.model import check_options
from cpuconv.conv.choice.target import FULL, IDLE_BYTES, IN_NETWORK, Target, precision_named
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, SourceError, kind_of, must
from cpuconv.graph.ir import Graph, names_of
from cpuconv.isa import current
from cpuconv.network.compiling import compiled
from cpuconv.network.model import Model
from cpuconv.network.saved.container import is_saved
from cpuconv.network.saved.reading import Saved
from cpuconv.network.sizes.prepared import Rewriting
from cpuconv.runtime.threads import check_threads, maximum_threads, wanted_threads

if TYPE_CHECKING:
    import onnx

    from cpuconv.network.precision.errors import Metric
    from cpuconv.network.precision.trials import Listener
    from cpuconv.option_types import Accuracy, NodePrecisions, Precision, PrecisionOrAuto, Strategy, Threads


def compile(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto | Graph,
    *,
    threads: Threads = None,
    strategy: Strategy = "cached",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    accuracy: Accuracy = "standard",
    precision: PrecisionOrAuto = "float32",
    node_precisions: NodePrecisions | None = None,
    tolerance: float | None = None,
    samples: Any = None,
    metric: Metric | None = None,
    progress: Listener | None = None,
    strict: bool = False,
    skip_passes: Sequence[str] = (),
    idle_bytes: int | None = None,
) -> Model:
    """Make a network ready to run: read, rewritten, laid out, placed in memory and recorded.

    Parameters
    ----------
    source : path, bytes, onnx.ModelProto or Graph
        An ONNX model, opset 6 or newer; or what has been read from one.
    threads : int, "auto" or None
        Most threads of a run. "auto": of 1, 2, 4, … and all cores as many as are fastest for this network and these
        sizes, by the model of its operators; with strategy "profile" as timed on random data. None:
        `get_num_threads()`.
    strategy : "heuristic", "cached" or "profile"
        How convolutions are chosen, as for `plan`.
    input_shapes : mapping of str to sequence of int, or None
        Sizes of inputs by name, one for each axis as the model has them (images as (N, C, H, W)), where it leaves them
        open. Those that stay open are taken from the arrays of a run.
    accuracy : "exact", "standard" or "fast"
        As for `plan`.
    precision : "float32", "bfloat16" or "auto"
        With "bfloat16" what is multiplied, and tensors between operators, may be rounded to bfloat16 where that is
        faster by the models; sums and functions are computed in float32. Inputs and outputs stay as the model has them.
        "auto": the fastest of float32, bfloat16, bytes and mixtures of them whose measured error is within `tolerance`
        for all `samples`; `Model.precision_table` tells.
    node_precisions : mapping of str to str, or None
        Other precisions of some nodes, by their names in the model; a node without one goes by its first output. Nodes
        that are computed together take the strictest of theirs.
    tolerance : float or None
        Of "auto": most error of the outputs for any sample, relative RMS (the largest of all outputs) or what `metric`
        says; by the spread of the samples' errors, others are expected to err by at most 1.5 times as much. None: 0.01.
    samples : iterable of (mapping of str to array, or array), path, or None
        Of "auto": feeds such as the network will run on; a network of one input takes arrays. A path is that of an .npz
        file, of a folder of such, arrays by input name; of arrays with one more axis than inputs, each holds one sample
        behind another. Times are those of the first sample's sizes. Bytes are weighed with 8 samples or more: their
        errors are measured on each half of fewer than 33, with what bytes stand for from the other half, too.
    metric : callable or None
        Of "auto": ``metric(reference_outputs, outputs) -> float``, of dicts of arrays by output name, takes the place
        of relative RMS; from 0 on.
    progress : callable or None
        Of "auto": ``progress(what, done, total)`` is told how far it is; a total of 0 is not known.
    strict : bool
        Whether to refuse operators that run through ONNX's reference evaluator.
    skip_passes : sequence of str
        Names of rewrites to leave out (`cpuconv.graph.passes.NAMES`), to look for the cause of a difference.
    idle_bytes : int or None
        Most bytes of memory for values in between that runs leave for the next ones, of whatever sizes, beside those of
        one run: what a peak of runs at once took is given back. None: 256 MiB. What 256 runs have not used goes in any
        case.

    Returns
    -------
    Model
        Call it with an array, or its `run` with a dict; arrays are of the shapes and dtypes that its `inputs` state.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type; `input_shapes` among them, where it does not fit the model.
    SourceError
        The model cannot be read, is wrong in itself, asks for too much memory or time, or has an operator that `strict`
        refuses.

    Warns
    -----
    CpuconvWarning
        Some operators run through ONNX's reference evaluator; it names them. Or precisions follow from one sample.
    """
    check_options(strategy, accuracy, None, False)
    auto = precision == AUTO
    if auto:
        check_left_out("node_precisions", f"where precision is {AUTO!r}", node_precisions)
        check_callable("metric", metric, "reference outputs and outputs")
        check_callable("progress", progress, "what is done, steps done and steps in all")
        tolerance, named = tolerance_of(tolerance), FULL
    else:
        named = precision_named(precision, more=[AUTO])
        for name, value in (("tolerance", tolerance), ("samples", samples), ("metric", metric), ("progress", progress)):
            check_left_out(name, f"where precision is not {AUTO!r}", value)
    from cpuconv.graph import passes  # what `load` does not need
    from cpuconv.reading.onnx_reader import read

    unknown = [name for name in skip_passes if name not in passes.NAMES]
    if unknown:
        raise ArgumentError(must("skip_passes", f"names among {', '.join(passes.NAMES)}", repr(unknown[0])))
    wanted = wanted_threads(threads)
    any_threads = isinstance(wanted, str)
    most = maximum_threads() if isinstance(wanted, str) else wanted
    limits = replace(IN_NETWORK, accuracy=accuracy)
    idle, each = _idle_bytes(idle_bytes), _precisions(node_precisions)
    target = Target(current(), most, strategy, limits, tuner_for(strategy), idle, named, each)
    shapes = {} if input_shapes is None else input_shapes
    if isinstance(source, (str, os.PathLike)) and is_saved(source):
        raise SourceError(f"{os.fspath(source)} is a saved model, which cpuconv.load reads.")
    graph = source if isinstance(source, Graph) else read(source)
    unknown = [name for name in each if name not in names_of(graph)]
    if unknown:
        raise ArgumentError(must("node_precisions", "of nodes by their names in the model", f"of {unknown[0]!r}"))
    options = Rewriting(strict, tuple(skip_passes))
    made: dict[str, Any] = {"source": _again(source, graph), "auto": any_threads, "early": True}
    if not auto:
        return compiled(graph, target, shapes, options, **made)
    from cpuconv.network.precision.errors import relative_rms
    from cpuconv.network.precision.to_come import doubt
    from cpuconv.quantizing.automatic.chosen import chosen_for

    feeds = feeds_of(samples, graph)
    if len(feeds) == 1:
        warnings.warn(f"precision={AUTO!r}: {doubt(1)}.", CpuconvWarning, stacklevel=2)
    threads = most if not any_threads else _fastest(compiled(graph, target, shapes, options, auto=True), feeds[0])
    chosen = chosen_for(
        graph,
        replace(target, threads=threads),
        shapes,
        options,
        feeds,
        tolerance_of(tolerance),
        metric or relative_rms,
        progress,
    )
    if chosen.graph is not graph:  # of whose weights integers were made
        chosen = chosen._replace(graph=replace(chosen.graph, defaults={}))
        made["source"] = lambda: chosen.graph
    return compiled(chosen.graph, replace(chosen.target, threads=most), shapes, options, **made).with_table(
        chosen.table
    )


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    strategy: Strategy | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    accuracy: Accuracy | None = None,
    precision: Precision | None = None,
    idle_bytes: int | None = None,
    trust_kernels: bool = False,
) -> Model:
    """Make a saved network ready to run; weights are read where the file is mapped, and shared by processes.

    With the options that it was saved with, and on the same CPU, it runs exactly as before: equal arrays give equal
    bits. Else layouts and algorithms are chosen anew, which a warning says and which takes the time that it takes
    `compile`. The package onnx is needed only for operators that run through ONNX's reference evaluator.

    Parameters
    ----------
    path : path
        A file that `Model.save` wrote.
    threads : int or None
        Most threads of a run. None: as many as it was saved with, but no more than there are cores.
    strategy, accuracy, precision : str or None
        As for `compile`. None: as it was saved with, and so are precisions of single nodes; with a precision stated,
        there are none.
    input_shapes : mapping of str to sequence of int, or None
        Sizes of inputs, where the saved network leaves them open.
    idle_bytes : int or None
        As for `compile`.
    trust_kernels : bool
        Whether to run machine code that the file holds (`Model.save(kernels=True)`), where it fits this CPU and these
        sources. Only for files that come from whom you trust: it is code, and can do whatever this process can.
        Otherwise it is ignored; kernels are those of the cache, of the package's pack, or compiled.

    Returns
    -------
    Model

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type.
    SourceError
        The file cannot be read, is no saved model, damaged, or of a newer version.

    Warns
    -----
    CpuconvWarning
        The model was saved on another CPU, by a version that packs weights otherwise, or with another number of
        threads, strategy, accuracy or precision: what was chosen for it is not followed.
    """
    saved = Saved(path, trust_kernels=trust_kernels)
    settings = saved.settings
    limits = settings.limits if accuracy is None else replace(settings.limits, accuracy=accuracy)
    how = settings.strategy if strategy is None else strategy
    check_options(how, limits.accuracy, limits.workspace, limits.reproducible)
    each = settings.node_precisions if precision is None else {}
    named = precision_named(settings.precision if precision is None else precision)
    wanted = min(settings.threads, maximum_threads()) if threads is None else check_threads(threads)
    stated = {
        "threads": (settings.threads, wanted),
        "strategy": (settings.strategy, how),
        "accuracy": (settings.limits.accuracy, limits.accuracy),
        "precision": (settings.precision, named),
        "nodes of other precisions": (len(settings.node_precisions), len(each)),
    }
    _tell_of_other_plans(saved, {name: pair for name, pair in stated.items() if pair[0] != pair[1]})
    target = Target(current(), wanted, how, limits, tuner_for(how), _idle_bytes(idle_bytes), named, each)
    shapes = {} if input_shapes is None else input_shapes
    again = _again(saved, saved.graph)
    return compiled(saved.graph, target, shapes, settings.rewriting, source=again, saved=saved, early=True)


def _fastest(model: Model, feed: Mapping[str, Any]) -> int:
    """As many threads as are fastest for a feed."""
    model.run(feed)
    return model.threads


def _precisions(stated: Mapping[str, str] | None) -> dict[str, str]:
    """Valid precisions of nodes from a user's value."""
    if stated is not None and not isinstance(stated, Mapping):
        raise ArgumentTypeError(must("node_precisions", "a dict of precisions by node, or None", kind_of(stated)))
    return {
        name: precision_named(precision, f"node_precisions[{name!r}]") for name, precision in (stated or {}).items()
    }


def _idle_bytes(wanted: int | None) -> int:
    """A valid limit from a user's value."""
    if wanted is None:
        return IDLE_BYTES
    if isinstance(wanted, bool) or not hasattr(wanted, "__index__"):
        raise ArgumentTypeError(must("idle_bytes", "an integer or None", repr(wanted)))
    if int(wanted) < 0:
        raise ArgumentError(must("idle_bytes", "0 or more bytes", repr(wanted)))
    return int(wanted)


def _tell_of_other_plans(saved: Saved, changed: Mapping[str, tuple[object, object]]) -> None:
    """Warn if what a saved model chose is not followed; `changed` are options with their values when saved and now."""
    if not saved.fits:
        warnings.warn(
            f"{saved.name} was saved on another CPU, or with weights packed otherwise: layouts and algorithms are"
            " chosen anew, and weights packed again. Save it again here to load it faster.",
            CpuconvWarning,
            stacklevel=3,
        )
    elif changed and saved.shapes:
        was, now = (", ".join(f"{name}={pair[at]!r}" for name, pair in changed.items()) for at in (0, 1))
        warnings.warn(
            f"{saved.name} was saved with {was} and is loaded with {now}: layouts and algorithms are chosen anew. Save"
            " it again with these options to load it faster.",
            CpuconvWarning,
            stacklevel=3,
        )


def _again(source: object, graph: Graph) -> Callable[[], Graph]:
    """What gives the graph of a source again: it is kept where it came from memory, and read again from a file."""
    if not isinstance(source, (str, os.PathLike)):
        return lambda: graph
    path = os.path.abspath(source)
    known = _identity(path)

    def again() -> Graph:
        if _identity(path) != known:
            raise SourceError(
                f"{path} must be as it was when the model was compiled, for the model to be saved or to"
                " take other arrays for its initializers."
            )
        from cpuconv.reading.onnx_reader import read

        return read(path)

    return again


def _identity(path: str) -> tuple[int, ...]:
    """What changes when a file does."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
