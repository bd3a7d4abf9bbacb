"""`cpuconv.quantize`: quantises a float32 model to an int8 QDQ file, calibrated on samples."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpuconv.errors import ArgumentTypeError, CpuconvWarning, SourceError, kind_of, must
from cpuconv.images.image import Image
from cpuconv.network.saved.container import is_saved
from cpuconv.quantizing import arguments
from cpuconv.quantizing.calibrating import Calibration, Progress
from cpuconv.quantizing.choosing import (
    COMPARISON_SAMPLES,
    Choice,
    calibrated,
    exclude_slower,
    fit_tolerance,
    layers_with_few_values,
)
from cpuconv.quantizing.cross_validation import CrossValidation, calibration_sample_count
from cpuconv.quantizing.data.images import ImageForm
from cpuconv.quantizing.data.samples import Feed, samples_of
from cpuconv.quantizing.errors import Judge, Metric, bounded_measure_of, measure_of
from cpuconv.quantizing.graphs.attention import quantizable
from cpuconv.quantizing.graphs.biases import reshape_biases
from cpuconv.quantizing.graphs.preparing import prepared
from cpuconv.quantizing.graphs.quantizable import QuantizableLayer
from cpuconv.quantizing.graphs.writing import check_writable, write_model
from cpuconv.quantizing.observing import ready
from cpuconv.quantizing.report import FLOAT32, INT8, Layer, Quantized, Reached
from cpuconv.quantizing.speed import race
from cpuconv.reading.decoding import Metadata
from cpuconv.reading.foreign import onnx_package
from cpuconv.reading.onnx_reader import read_with_metadata
from cpuconv.runtime.float_environment import default_environment
from cpuconv.runtime.threads import check_threads

if TYPE_CHECKING:
    import onnx

_WHOLE = "measuring the error"  # progress step: error of the whole network


@default_environment()
def quantize(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    data: Any,
    *,
    output: str | os.PathLike[str],
    tolerance: float | None = None,
    metric: Metric | None = None,
    layers: int = 0,
    method: str = "mse",
    percentile: float = 99.99,
    activations: str = "uint8",
    keep: Sequence[str] = (),
    equalize: bool | None = None,
    correct_biases: bool = True,
    refuse_slower: bool = True,
    full_range: bool = False,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    image_mean: Sequence[float] = ImageForm.mean,
    image_std: Sequence[float] = ImageForm.std,
    image: Image | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Quantise a float32 network to int8 and write it as an ONNX file with QuantizeLinear and DequantizeLinear.

    Weights become int8 with one scale per output channel, and biases int32. Activations become int8 or uint8 with one
    scale per tensor, calibrated on the samples; so do queries, keys, values and attention weights.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        A floating-point ONNX model, opset 6 or newer. float16 and bfloat16 are widened to float32 first; inputs and
        outputs keep their types.
    data : iterable, path, or object with get_next()
        Typical input samples, some hundred as a rule: feeds, each a dict of arrays by input name, or an array for a
        network with one input; a folder of .npz files, one feed each; a folder of images, for a network with one input
        (N, 1 or 3, H, W) or (N, H, W, 1 or 3); or a `CalibrationDataReader` of onnxruntime.quantization. Feeds stay in
        memory, files are read again. If inputs state a batch, rows are concatenated and split to fill it; the last
        batch is filled up with the first rows.
    output : path
        The file to write, in an existing folder. It is written atomically.
    tolerance : float or None
        Maximum error of the outputs, on the samples and on unseen inputs. With fewer than 33 samples, each half is also
        judged by a network calibrated on the other half. By the spread of the errors (four or more samples, preferably
        eight), one unseen sample in 1,000 is expected to exceed 1.5 times the tolerance. If outputs are probabilities,
        95% of inputs whose two likeliest classes are equally likely are within 1.5 times the tolerance too.
        Layers stay float32 until the error is within the tolerance, those with the largest error per saved second
        first; layers whose inputs have few values stay float32 too. None: no limit.
    metric : callable or None
        Error function of two dicts of a sample's outputs, float32 and int8. It returns 0 or more; 0 means equal. Its
        mean over samples is used. None: the relative RMS error over all samples, the maximum over outputs, and over
        groups of columns of very different size within outputs (N, A, B), such as coordinates and scores of boxes.
    layers : int
        Minimum number of layers that stay float32: those with the largest error per saved second.
    method : "mse", "percentile", "entropy" or "minmax"
        Calibration of a tensor's range: minimal squared error; `percentile` of the values at each end; minimal loss of
        information; minimum and maximum.
    percentile : float
        From 50 to 100, for method "percentile".
    activations : "uint8" or "int8"
        Type of activations. Engines on x86 are faster with uint8.
    keep : sequence of str
        Names of nodes that stay float32.
    equalize : bool or None
        Whether to equalise the channel ranges of two layers with a Relu between them first (Nagel et al., 2019).
        None: if that reduces the error.
    correct_biases : bool
        Whether biases compensate the mean error of each channel (same source).
    refuse_slower : bool
        Whether layers stay float32 if int8 is not faster on this machine, measured on the first sample; also whether
        the network is timed before and after.
    full_range : bool
        Whether weights may use the full int8 range in every channel. By default, no two of them saturate a 16-bit sum,
        which engines use on x86 without VNNI (AVX2).
    input_shapes : mapping of str to sequence of int, or None
        Sizes of inputs that the model leaves open, if `data` is a folder of images.
    image_mean, image_std : sequence of float
        Normalisation of images, pixels from 0 to 1: mean and standard deviation, one number or one per channel. uint8
        inputs get the pixels unchanged.
    image : Image or None
        How images become the input; it replaces `image_mean` and `image_std`.
    threads : int or None
        Threads of the runs on the samples; None: `get_num_threads()`.
    progress : callable or None
        Called with (step name, steps done, steps in total).

    Returns
    -------
    Quantized
        Precision of each layer, errors, file sizes and times; prints itself, and has `.to_dict()`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type, the samples do not fit the network, or each single layer exceeds the
        tolerance.
    SourceError
        The model cannot be read or written, is quantised already, is a saved model, has nothing to quantise, or has
        values that are not finite.
    OSError
        The file cannot be written.

    Warns
    -----
    CpuconvWarning
        Operators run in ONNX's reference evaluator, or the int8 network is not faster on this machine.
    """
    path = arguments.file("output", output)
    limit, layers = arguments.tolerance(tolerance), arguments.count("layers", layers)
    how = arguments.form(method, percentile, activations, full_range, margin=limit is not None)
    arguments.check_callable("metric", metric)
    arguments.check_callable("progress", progress)
    mean, std = (arguments.numbers(name, of) for name, of in (("image_mean", image_mean), ("image_std", image_std)))
    if image is not None and not isinstance(image, Image):
        raise ArgumentTypeError(must("image", "a cpuconv.Image or None", kind_of(image)))
    arguments.check_bool("equalize", equalize, none=True)
    for name, given in (
        ("correct_biases", correct_biases), ("refuse_slower", refuse_slower), ("full_range", full_range),
    ):  # fmt: skip
        arguments.check_bool(name, given)
    workers = check_threads(threads)
    if isinstance(source, (str, os.PathLike)) and is_saved(source):
        raise SourceError(f"{os.fspath(source)} is a saved model: quantise the ONNX file that it was made from.")
    onnx_package("the quantised model is written by the package onnx")  # check before hours of work
    graph, metadata = read_with_metadata(source)
    ports = arguments.ports(graph, {} if input_shapes is None else input_shapes)
    samples = samples_of(data, ports, ImageForm(mean, std, image))
    feed = next(iter(samples))
    network = prepared(graph, {name: array.shape for name, array in feed.items()})
    possible = quantizable(*network)
    check_writable(network.graph, {layer.node.inputs[1] for layer in possible if isinstance(layer, QuantizableLayer)})
    choice = Choice(arguments.kept(network.graph, possible, keep))
    if limit is not None:
        little = layers_with_few_values(network, calibration_sample_count(len(samples)))
        if any(layer.name not in choice.kept | little for layer in possible):
            choice.kept = little | choice.kept
    told_of_limit = limit is not None and metric is None
    judge = Judge(network.graph, samples, workers, measure_of(metric), probabilities=told_of_limit)
    few = judge.first(COMPARISON_SAMPLES)
    told = progress or (lambda what, done, total: None)
    made = calibrated(network, samples, how, workers, told, few, choice, correct=correct_biases, equalize=equalize)
    if refuse_slower:
        exclude_slower(made, choice, feed)
    reached = _kept_to(limit, made, judge, few, metric, choice, layers)
    timed = feed if refuse_slower else None
    return _written(path, arguments.size(source, graph), made, choice, judge, reached, metadata, timed)


def _kept_to(
    tolerance: float | None,
    made: Calibration,
    judge: Judge,
    few: Judge,
    metric: Metric | None,
    choice: Choice,
    min_float32: int,
) -> Reached | None:
    """Keep layers in float32 until the tolerance holds, for unseen inputs too; return the bounded error."""
    if tolerance is None:
        fit_tolerance(made, few, lambda some: 0.0, choice, None, min_float32)
        return None
    validation = CrossValidation(made, judge, bounded_measure_of(metric), tolerance)
    error = fit_tolerance(made, few, validation.error, choice, tolerance, min_float32)
    return Reached(error, tolerance, len(judge.samples))


def _written(
    path: Path,
    before: int,
    made: Calibration,
    choice: Choice,
    judge: Judge,
    reached: Reached | None,
    metadata: Metadata,
    feed: Feed | None,
) -> Quantized:
    """Write the int8 network and return its report; timed on `feed`, if given."""
    graph = reshape_biases(made.built(choice.int8_layers(made)), made.known)
    error, agreement = judge.figures(graph, made.steps(_WHOLE, 1))
    timed = None if feed is None else race(ready(made.graph, made.threads), ready(graph, made.threads), feed)
    size = write_model(path, graph, metadata)
    if timed is not None and timed.ratio.low > 1:
        warnings.warn(
            f"{graph.name}: int8 is not faster on this machine: {timed.second * 1e3:.3f} ms, and float32 takes"
            f" {timed.first * 1e3:.3f} ms.",
            CpuconvWarning,
            stacklevel=4,  # the caller of `quantize`, which is decorated
        )
    rows = tuple(
        Layer(
            name=(name := layer.name),
            op=layer.op,
            precision=FLOAT32 if name in choice.kept else INT8,
            why=choice.kept.get(name, ""),
            error=made.errors[layer.node.outputs[0]],
            error_alone=choice.alone.get(name),
            float_seconds=choice.float32_seconds.get(name),
            byte_seconds=choice.int8_seconds.get(name),
        )
        for layer in made.layers
    )
    seconds, old = (None, None) if timed is None else (timed.second, timed.first)
    return Quantized(path, size, before, error, agreement, seconds, old, made.threads, rows, reached)
