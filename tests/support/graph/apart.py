"""Quantised networks as `onnxruntime.quantization` writes them, and such a network cut at every tensor of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
from onnx import helper

Feed = Mapping[str, np.ndarray]

FORMS = tuple(
    (form, act, each) for form in ("QDQ", "QOperator") for act in ("QUInt8", "QInt8") for each in (False, True)
)
"""How a network may be quantised: form of the file, type of activations, whether channels of weights have scales."""


def quantised(
    model: onnx.ModelProto, feeds: Iterable[Feed], form: tuple[str, str, bool], bits: int, folder: Path
) -> onnx.ModelProto:
    """A network of floats in one of `FORMS`, weights int8 of 7 or 8 bits."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Feeds(CalibrationDataReader):
        """What ranges are taken from."""

        def __init__(self) -> None:
            self.left: Iterator[Feed] = iter(feeds)

        def get_next(self) -> Feed | None:
            return next(self.left, None)

    source, folded, written = (folder / f"{name}.onnx" for name in ("source", "folded", "written"))
    kind, activations, each = form
    onnx.save(model, source)
    quant_pre_process(str(source), str(folded), skip_symbolic_shape=True)
    quantize_static(
        str(folded),
        str(written),
        Feeds(),
        quant_format=QuantFormat[kind],
        activation_type=QuantType[activations],
        weight_type=QuantType.QInt8,
        per_channel=each,
        reduce_range=bits == 7,
    )
    return onnx.load(written)


def cut(
    model: onnx.ModelProto, feed: Feed, runtime: ModuleType
) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[str]]:
    """The network with every tensor of bytes that it computes fed, and given; what to feed; the names of these tensors.

    A reader of such a tensor reads what is fed, so that each is computed from the same bytes whoever runs it.
    """
    computed = [name for node in model.graph.node for name in node.output]
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    given = {output.name for output in whole.graph.output}
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed if name not in given)
    session = plain_session(whole, runtime)
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, dict(feed)), strict=True))
    tensors = [name for name in computed if found[name].dtype in (np.uint8, np.int8)]
    fed = {name: f"{name} fed" for name in tensors}
    apart = onnx.ModelProto()
    apart.CopyFrom(model)
    for node in apart.graph.node:
        node.input[:] = [fed.get(name, name) for name in node.input]
    read = {name for node in apart.graph.node for name in node.input}
    apart.graph.ClearField("value_info")
    infos = {
        name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(found[name].dtype), found[name].shape)
        for name in tensors
    }
    apart.graph.output.extend(info for name, info in infos.items() if name not in given)
    for name in tensors:
        if fed[name] in read:
            info = apart.graph.input.add()
            info.CopyFrom(infos[name])
            info.name = fed[name]
    more = {fed[name]: found[name] for name in tensors if fed[name] in read}
    return apart, {**feed, **more}, tensors


def plain_session(model: onnx.ModelProto, runtime: ModuleType) -> object:
    """A session of ONNX Runtime that computes each node as it is written."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
