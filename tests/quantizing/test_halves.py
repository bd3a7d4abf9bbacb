"""Models of shorter floats are widened, then quantised: the file has inputs and outputs of the model's types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cpuconv
from cpuconv.errors import ArgumentTypeError
from support.graph.floats import feeds, network, run_all

ort = pytest.importorskip("onnxruntime")
TYPES = {"float16": (TensorProto.FLOAT16, np.float16), "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}


def shortened(model: onnx.ModelProto, to: str, keep_io: bool, alone: tuple[str, ...] = ()) -> onnx.ModelProto:
    """A model whose floats are shorter, as converters make it; `alone`: operators that stay float32, between Casts."""
    kind, dtype = TYPES[to]
    made = onnx.ModelProto.FromString(model.SerializeToString())
    graph = made.graph
    kept = {name for node in graph.node if node.op_type in alone for name in node.input[1:]}
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in kept:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    nodes = []
    for node in graph.node:
        if node.op_type in alone:
            nodes.append(helper.make_node("Cast", [node.input[0]], [f"{node.name}in"], to=TensorProto.FLOAT))
            name, node.input[0], node.output[0] = node.output[0], nodes[-1].output[0], f"{node.output[0]}wide"
            nodes += [node, helper.make_node("Cast", [node.output[0]], [name], to=kind)]
        else:
            nodes.append(node)
    for info in (*graph.input, *graph.output):
        if not keep_io:
            info.type.tensor_type.elem_type = kind
            continue
        inside, own = f"{info.name}short", info in graph.input
        for node in nodes:
            for names in (node.input, node.output):
                names[:] = [inside if name == info.name else name for name in names]
        ends = (info.name, inside) if own else (inside, info.name)
        cast = helper.make_node("Cast", ends[:1], ends[1:], to=kind if own else TensorProto.FLOAT)
        nodes.insert(0 if own else len(nodes), cast)
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def test_the_models_are_such():
    for keep in (False, True):
        made = shortened(network("excited"), "float16", keep, ("Resize",))
        onnx.checker.check_model(made, full_check=True)
        feed = feeds(network("excited"), 1)[0]
        exact = run_all(network("excited"), feed)
        given = feed if keep else {name: array.astype(np.float16) for name, array in feed.items()}
        for name, array in run_all(made, given).items():
            np.testing.assert_allclose(array.astype(np.float32), exact[name], atol=0.03 * np.abs(exact[name]).max())


@pytest.mark.parametrize("keep_io", [False, True])
@pytest.mark.parametrize("to", TYPES)
def test_bytes_are_those_of_the_network_of_float32(to, keep_io, tmp_path):
    wide = network("excited")
    for tensor in wide.graph.initializer:  # numbers that shorter floats have
        array = numpy_helper.to_array(tensor).astype(TYPES[to][1]).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    source = shortened(wide, to, keep_io, ("Resize",))
    dtype = np.dtype(np.float32 if keep_io else TYPES[to][1])
    shorter = [{name: array.astype(TYPES[to][1]) for name, array in feed.items()} for feed in feeds(wide, 4)]
    floats = [{name: array.astype(np.float32) for name, array in feed.items()} for feed in shorter]
    given = floats if keep_io else shorter
    models = {}
    for name, (model, samples) in {"a": (source, given), "b": (wide, floats)}.items():
        file = tmp_path / f"{name}.onnx"
        # equalised in any case: errors with and without may be so close that halves decide otherwise
        made = cpuconv.quantize(model, samples, output=file, threads=1, refuse_slower=False, equalize=True)
        assert not made.kept and made.error < 0.05
        models[name] = onnx.load(file)
    expected = {tensor.name: numpy_helper.to_array(tensor) for tensor in models["b"].graph.initializer}
    weights = [array for array in expected.values() if array.dtype == np.int8 and array.ndim > 1]
    found = [numpy_helper.to_array(tensor) for tensor in models["a"].graph.initializer]
    matched = [any(array.shape == own.shape and (array == own).all() for own in found) for array in weights]
    assert len(weights) == 6 and all(matched)
    casts = [node for node in models["a"].graph.node if node.op_type == "Cast"]
    assert len(casts) == (0 if keep_io else 3)
    compiled, plain = (cpuconv.compile(models[name], threads=1) for name in "ab")
    for name, array in compiled.run(given[0]).items():
        assert array.dtype == dtype
        np.testing.assert_allclose(array.astype(np.float32), plain.run(floats[0])[name], rtol=0.01, atol=1e-6)
    if to == "float16":
        theirs = run_all(models["a"], given[0])
        for name, array in compiled.run(given[0]).items():
            difference = array.astype(np.float64) - theirs[name]
            assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(theirs[name].astype(np.float64))


def test_samples_are_of_the_models_type(tmp_path):
    source = shortened(network("decoder"), "float16", False)
    with pytest.raises(ArgumentTypeError, match=r"data\[0\]: .*'feed\['x'\]' must be of dtype float16 .*, not float32"):
        cpuconv.quantize(source, feeds(network("decoder"), 1), output=tmp_path / "q.onnx")
