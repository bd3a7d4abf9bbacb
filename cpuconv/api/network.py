"""Public calls that prepare a network to run: compile, load."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cpuconv.api.options import idle_limit, tuner_for
from cpuconv.api.pickling import origin
from cpuconv.api.precision import AUTO, check_callable, check_left_out, feeds_of, tolerance_of
from cpuconv.api.sources import again, read
from cpuconv.conv.choice.model import check_options
from cpuconv.conv.choice.target import IN_NETWORK, PRECISION_F32, Target, check_one_narrow_type, precision_named
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

    from cpuconv.images.image import Image
    from cpuconv.network.precision.errors import Metric
    from cpuconv.network.precision.trials import Listener
    from cpuconv.option_types import Accuracy, Hint, NodePrecisions, Precision, PrecisionOrAuto, Strategy, Threads

LATENCY, THROUGHPUT = HINTS = "latency", "throughput"


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
    hint: Hint = "latency",
    images: Mapping[str, Image] | None = None,
    batches: Sequence[int] | None = None,
) -> Model:
    """Prepare a network to run: read, rewrite, plan layouts, assign memory and record the program.

    Parameters
    ----------
    source : path, bytes, onnx.ModelProto or Graph
        An ONNX model, opset 6 or newer; a `.pt2` file of `torch.export.save`, which needs torch; or the graph that was
        read from one. `from_torch` compiles modules of PyTorch.
    threads : int, "auto" or None
        Maximum number of threads of a run. "auto": the fastest of 1, 2, 4, … and all cores for this network and these
        sizes, by the cost model of its operators; with strategy "profile", as timed on random data. None:
        `get_num_threads()`.
    strategy : "heuristic", "cached" or "profile"
        How algorithms of convolutions are selected, as for `plan`.
    input_shapes : mapping of str to sequence of int, or None
        Sizes of inputs by name, one per axis as the model has them (images as (N, C, H, W)), where the model leaves
        them open. Sizes that remain open are taken from the arrays of each run.
    accuracy : "exact", "standard" or "fast"
        As for `plan`.
    precision : "float32", "bfloat16", "float16" (on Arm CPUs that add float16) or "auto"
        "bfloat16": operands of multiplications and intermediate tensors may be rounded to bfloat16 where the cost
        models predict a gain; sums and functions are computed in float32. Inputs and outputs keep their dtypes.
        "float16": the same in float16, and convolutions may sum blocks in float16 unless `accuracy` is "exact". "auto":
        the fastest of float32, a 16-bit type, int8 and mixtures whose measured error is within `tolerance` for all
        `samples` (`Model.precision_table`).
    node_precisions : mapping of str to str, or None
        Other precisions of single nodes, by their names in the model; an unnamed node is identified by its first
        output. Nodes that are fused take the strictest precision among theirs.
    tolerance : float or None
        For "auto": maximum error of the outputs for any sample, as relative RMS (the largest of all outputs) or as
        `metric` computes it. Unseen inputs are predicted, from the spread of the samples' errors, to have at most 1.5
        times this error. None: 0.01.
    samples : iterable of (mapping of str to array, or array), path, or None
        For "auto": representative feeds; a network of one input also takes plain arrays. A path names an .npz file of
        arrays by input name, or a folder of such files. Arrays with one axis more than the inputs hold one sample per
        index of the first axis. Times are those of the first sample's sizes. Int8 is a candidate with 8 samples or
        more. With fewer than 33, errors on each half are also measured with calibration on the other half.
    metric : callable or None
        For "auto": ``metric(reference_outputs, outputs) -> float``, at least 0, on dicts of arrays by output name. It
        replaces relative RMS.
    progress : callable or None
        For "auto": ``progress(what, done, total)`` is called to report progress; a total of 0 means unknown.
    strict : bool
        Whether to reject operators that run through ONNX's reference evaluator.
    skip_passes : sequence of str
        Names of rewrites to skip (`cpuconv.graph.passes.NAMES`), to find the cause of a difference.
    idle_bytes : int or None
        Maximum memory for intermediate tensors, in bytes, that finished runs of any sizes keep for later ones, in
        addition to the memory of one run. Memory beyond it, from a peak of concurrent runs, is released. None: 256 MiB.
        Memory that 256 runs have not used is always released.
    hint : "latency" or "throughput"
        "latency": one run uses all `threads`. "throughput": concurrent runs (`Queue`, `map`, `Model.submit`) share
        them; `Model.streams` and `Model.threads` are those of 1, 2, 4, … threads per run with most runs per second,
        measured on random data if no size is open.
    images : mapping of str to Image, or None
        Inputs that take pictures of uint8 and any size, by name: how these are resized and normalised. Saved models
        keep it.
    batches : sequence of int, or None
        Batch sizes with a program each, which together run a batch of any size: it is split, and its last part padded,
        as takes the least time by measurement (`Model.batches`). The batch is the first axis of the inputs where the
        model leaves it open or writes 1; the other sizes must be known. A model that mixes items is rejected.

    Returns
    -------
    Model
        Call it with an array, or its `run` with a dict; arrays have the shapes and dtypes that its `inputs` state.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type, `input_shapes` do not fit the model, or an operator, which the message
        names, forbids `batches`.
    SourceError
        The model cannot be read, is invalid, needs too much memory or time, or has an operator that `strict` rejects.

    Warns
    -----
    CpuconvWarning
        Some operators run through ONNX's reference evaluator; the message names them. Or only one sample was given.
    """
    given = dict(locals())
    check_options(strategy, accuracy, None, False)
    if hint not in HINTS:
        raise ArgumentError(must("hint", " or ".join(map(repr, HINTS)), repr(hint)))
    if hint == THROUGHPUT:
        from cpuconv.api.throughput import most_runs_per_second

        cores = check_threads(None if threads == AUTO else threads)
        same = given | {"hint": LATENCY}
        best = most_runs_per_second(lambda count: compile(**same | {"threads": count}), cores)
        return best.with_origin(origin(compile, given))
    auto = precision == AUTO
    if auto:
        check_left_out("node_precisions", f"where precision is {AUTO!r}", node_precisions)
        check_callable("metric", metric, "reference outputs and outputs")
        check_callable("progress", progress, "what is done, steps done and steps in all")
        tolerance, named = tolerance_of(tolerance), PRECISION_F32
    else:
        named = precision_named(precision, more=[AUTO])
        for name, value in (("tolerance", tolerance), ("samples", samples), ("metric", metric), ("progress", progress)):
            check_left_out(name, f"where precision is not {AUTO!r}", value)
    from cpuconv.graph import passes  # deferred: `load` does not need it

    unknown = [name for name in skip_passes if name not in passes.NAMES]
    if unknown:
        raise ArgumentError(must("skip_passes", f"names among {', '.join(passes.NAMES)}", repr(unknown[0])))
    wanted = wanted_threads(threads)
    any_threads = isinstance(wanted, str)
    most = maximum_threads() if isinstance(wanted, str) else wanted
    limits = replace(IN_NETWORK, accuracy=accuracy)
    idle, each = idle_limit(idle_bytes), _precisions(node_precisions)
    check_one_narrow_type(named, each)
    target = Target(current(), most, strategy, limits, tuner_for(strategy), idle, named, each)
    shapes = {} if input_shapes is None else input_shapes
    if isinstance(source, (str, os.PathLike)) and is_saved(source):
        raise SourceError(f"{os.fspath(source)} is a saved model: use cpuconv.load.")
    graph = source if isinstance(source, Graph) else read(source)
    unknown = [name for name in each if name not in names_of(graph)]
    if unknown:
        raise ArgumentError(
            must("node_precisions", "a dict whose keys are node names of the model", f"one with {unknown[0]!r}")
        )
    options = Rewriting(strict, tuple(skip_passes))
    made: dict[str, Any] = {"source": again(source, graph), "auto": any_threads, "early": True}
    if not auto:
        ready = _with_images(graph, images, batches, target, shapes, options, made)
        return ready.with_origin(origin(compile, given))
    from cpuconv.network.precision.errors import relative_rms
    from cpuconv.network.precision.prediction_bound import doubt
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
    if chosen.graph is not graph:  # the weights of this one were quantised
        chosen = chosen._replace(graph=replace(chosen.graph, defaults={}))
        made["source"] = lambda: chosen.graph
    most_target = replace(chosen.target, threads=most)
    return _with_images(chosen.graph, images, batches, most_target, shapes, options, made).with_table(chosen.table)


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
    """Prepare a saved network to run; weights are read from the memory-mapped file, which processes share.

    With the options that it was saved with, and on the same CPU, results are bit-identical for equal inputs. Otherwise
    a warning is issued, and layouts and algorithms are selected again, which takes as long as in `compile`. The package
    onnx is needed only for operators that run through ONNX's reference evaluator.

    Parameters
    ----------
    path : path
        A file that `Model.save` wrote.
    threads : int or None
        Maximum number of threads of a run. None: the saved number, but at most the number of cores.
    strategy, accuracy, precision : str or None
        As for `compile`. None: the saved value; for `precision`, also the saved precisions of single nodes. A given
        precision discards these.
    input_shapes : mapping of str to sequence of int, or None
        Sizes of inputs, where the saved network leaves them open.
    idle_bytes : int or None
        As for `compile`.
    trust_kernels : bool
        Whether to run machine code from the file (`Model.save(kernels=True)`), if it fits this CPU and this version's
        sources. Use it only for files from a trusted origin: the code can do whatever this process can. Otherwise the
        code is ignored, and kernels come from the cache folder, the package's kernel pack, or the compiler.

    Returns
    -------
    Model

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type.
    SourceError
        The file cannot be read, is not a saved model, is damaged, or is of a newer version.

    Warns
    -----
    CpuconvWarning
        The model was saved on another CPU, by a version with another packing of weights, or with another number of
        threads, strategy, accuracy or precision: its saved layouts and algorithms are not used.
    """
    given = dict(locals())
    saved = Saved(path, trust_kernels=trust_kernels)
    settings = saved.settings
    limits = settings.limits if accuracy is None else replace(settings.limits, accuracy=accuracy)
    how = settings.strategy if strategy is None else strategy
    check_options(how, limits.accuracy, limits.workspace, limits.reproducible)
    each = _precisions(settings.node_precisions) if precision is None else {}
    named = precision_named(settings.precision if precision is None else precision)
    check_one_narrow_type(named, each)
    wanted = min(settings.threads, maximum_threads()) if threads is None else check_threads(threads)
    stated = {
        "threads": (settings.threads, wanted),
        "strategy": (settings.strategy, how),
        "accuracy": (settings.limits.accuracy, limits.accuracy),
        "precision": (settings.precision, named),
        "nodes of other precisions": (len(settings.node_precisions), len(each)),
    }
    _tell_of_other_plans(saved, {name: pair for name, pair in stated.items() if pair[0] != pair[1]})
    target = Target(current(), wanted, how, limits, tuner_for(how), idle_limit(idle_bytes), named, each)
    shapes = {} if input_shapes is None else input_shapes
    if saved.batches is None:
        loaded = _loaded(saved, target, shapes)
    else:
        from cpuconv.api.batches import with_saved_batches  # deferred: few models have several batch sizes

        loaded = with_saved_batches(saved.batches, shapes, threads, partial(_loaded, target=target))
    return loaded.with_images(saved.images, saved.numbers).with_origin(origin(load, given))


def _loaded(saved: Saved, target: Target, shapes: Mapping[str, Sequence[int]], threads: int | None = None) -> Model:
    """The model of a saved network; `threads` replaces the target's."""
    source, target = again(saved, saved.graph), replace(target, threads=threads or target.threads)
    return compiled(saved.graph, target, shapes, saved.settings.rewriting, source=source, saved=saved, early=True)


def _with_images(
    graph: Graph,
    images: Mapping[str, Image] | None,
    batches: Sequence[int] | None,
    target: Target,
    shapes: Mapping[str, Sequence[int]],
    options: Rewriting,
    made: dict[str, Any],
) -> Model:
    """Compile a graph whose inputs may take pictures, or with `batches` a model of a program per batch size."""
    if not images:
        return _for_batches(batches, graph, target, shapes, options, **made)
    from cpuconv.images.folding import folded  # deferred: few programs need it

    source, (graph, numbers) = made["source"], folded(graph, images, target)
    if numbers:
        made["source"] = lambda: folded(source(), images, target)[0]
    return _for_batches(batches, graph, target, shapes, options, **made).with_images(images, numbers)


def _for_batches(
    batches: Sequence[int] | None,
    graph: Graph,
    target: Target,
    shapes: Mapping[str, Sequence[int]],
    options: Rewriting,
    **made: Any,
) -> Model:
    """Compile a graph, or with `batches` a model of a program per batch size."""
    if batches is None:
        return compiled(graph, target, shapes, options, **made)
    from cpuconv.api.batches import with_batches

    return with_batches(
        graph, shapes, batches, made.pop("source"), partial(compiled, target=target, options=options, **made)
    )


def _fastest(model: Model, feed: Mapping[str, Any]) -> int:
    """The number of threads that is fastest for a feed."""
    model.run(feed)
    return model.threads


def _precisions(stated: Mapping[str, str] | None) -> dict[str, str]:
    """Validate precisions of nodes that a user gave."""
    if stated is not None and not isinstance(stated, Mapping):
        raise ArgumentTypeError(must("node_precisions", "a dict of precisions by node, or None", kind_of(stated)))
    return {
        name: precision_named(precision, f"node_precisions[{name!r}]") for name, precision in (stated or {}).items()
    }


def _tell_of_other_plans(saved: Saved, changed: Mapping[str, tuple[object, object]]) -> None:
    """Warn if the saved layouts and algorithms are not used; `changed`: options with their saved and current values."""
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
