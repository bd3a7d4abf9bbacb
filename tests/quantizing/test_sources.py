"""What models of any age and kind become: opsets, files beside, constants that are inputs too, several inputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import cpuconv
from cpuconv.errors import SourceError
from cpuconv.quantizing.errors import RelativeError
from cpuconv.quantizing.graphs import writing
from support.graph.floats import feeds, network, run_all, with_weights
from support.graphs import parse

OF_NINE = """g (float[N,3,8,8] x) => (float[N,16] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    b = Clip<min=0.0, max=6.0>(a)
    u = Upsample<mode="nearest">(b, twice)
    p = Pad<pads=[0,0,1,1,0,0,1,1]>(u)
    c = Conv<strides=[2,2]>(p, w2)
    d = Dropout(c)
    e = Slice<axes=[1], starts=[0], ends=[4]>(d)
    m = ReduceMean<axes=[2], keepdims=0>(e)
    t = Unsqueeze<axes=[3]>(m)
    q = Squeeze<axes=[3]>(t)
    f = Flatten(q)
    k = Gemm(f, w3, b3)
    y = Softmax(k)
}"""
OF_ELEVEN = """g (float[N,3,8,8] x) => (float[N,16] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    b = Clip(a, zero, six)
    u = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(b, none, twice)
    p = Pad(u, pads)
    c = Conv<strides=[2,2]>(p, w2)
    s = Constant<value_int=1>()
    d, drop = Split<axis=1, split=[4,4]>(c)
    m = ReduceMean<axes=[2], keepdims=0>(d)
    t = Unsqueeze<axes=[3]>(m)
    q = Squeeze<axes=[3]>(t)
    f = Flatten(q)
    k = Gemm(f, w3, b3)
    y = Softmax(k)
}"""
WEIGHTS = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (32, 16), "b3": (16,)}


def checked(source, tmp_path, layers, given=None, **options) -> onnx.ModelProto:
    """The network of bytes, which ONNX's checker and ONNX Runtime take; both engines are near the floats."""
    samples = feeds(source, 4) if given is None else given
    model = source if isinstance(source, onnx.ModelProto) else onnx.load(source)
    made = cpuconv.quantize(
        source, samples, output=tmp_path / "q.onnx", threads=1, refuse_slower=False, method="minmax", **options
    )
    assert len(made.layers) == layers and not made.kept
    written = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(written, full_check=True)
    exact, theirs, ours = (
        run_all(model, samples[0]), run_all(written, samples[0]), cpuconv.compile(written, threads=1).run(samples[0]),
    )  # fmt: skip
    for name, array in exact.items():
        assert np.linalg.norm(ours[name] - array) < 0.05 * np.linalg.norm(array), name
        assert np.linalg.norm(ours[name] - theirs[name]) < 0.02 * np.linalg.norm(array), name
    return written


@pytest.mark.parametrize("opset, text", [(9, OF_NINE), (11, OF_ELEVEN)])
def test_older_opsets_become_one_of_21(opset, text, tmp_path):
    source = with_weights(parse(text, opset), WEIGHTS)
    if opset > 9:
        pads = onnx.numpy_helper.from_array(np.int64([0, 0, 1, 1, 0, 0, 1, 1]), "pads")
        source.graph.initializer.append(pads)
    written = checked(source, tmp_path, 3)
    assert [entry.version for entry in written.opset_import] == [21]


def test_constants_that_are_inputs_too_and_an_old_format(tmp_path):
    source = network("residual")
    source.ir_version = 3
    source.opset_import[0].version = 11
    source.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in source.graph.initializer
    )
    given = feeds(network("residual"), 4)
    written = checked(source, tmp_path, 6, given)
    assert [info.name for info in written.graph.input] == ["x"] and written.ir_version >= 10


def test_weights_in_files_beside_the_model_count(tmp_path):
    file = tmp_path / "m.onnx"
    source = network("decoder")
    onnx.save_model(network("decoder"), file, save_as_external_data=True, location="weights", size_threshold=0)
    given = feeds(source, 3)
    made = cpuconv.quantize(file, given, output=tmp_path / "a.onnx", threads=1, refuse_slower=False)
    plain = cpuconv.quantize(source, given, output=tmp_path / "b.onnx", threads=1, refuse_slower=False)
    beside, own = (onnx.load(tmp_path / name).graph for name in ("a.onnx", "b.onnx"))
    assert list(beside.node) == list(own.node) and list(beside.initializer) == list(own.initializer)
    whole = file.stat().st_size + (tmp_path / "weights").stat().st_size
    assert abs(made.bytes_before - whole) < 0.1 * whole and made.error == plain.error


def test_what_no_file_can_hold_is_told_before_samples_are_run(tmp_path, monkeypatch):
    source = network("residual")
    whole = sum(int(np.prod(tensor.dims)) for tensor in source.graph.initializer)
    told: list[object] = []
    monkeypatch.setattr(writing, "_MAX_BYTES", whole)
    with pytest.raises(SourceError, match=r"g must have less than 2 GiB to be one ONNX file, not \d+ bytes"):
        cpuconv.quantize(
            source, feeds(source, 1), output=tmp_path / "q.onnx", progress=lambda *state: told.append(state)
        )
    assert not told and not list(tmp_path.iterdir())


def test_several_inputs_and_what_is_computed_of_constants_and_sizes(tmp_path):
    """As exporters write models that they fold no constants of: the sizes of padding come out of a chain of nodes."""
    text = """g (float[N,4,6,6] x, int64[N,T] ids) => (float[N,8] y, int64[N,T] z) {
        h = ConstantOfShape<value=int64[1]{0}>(four)
        s = Shape(x)
        n = Gather(s, zero_i)
        o = Add(n, one)
        p = Concat<axis=0>(ends, h)
        q = Reshape(p, pairs)
        r = Slice(q, last, first, rows, back)
        t = Transpose<perm=[1,0]>(r)
        pads = Reshape(t, flat)
        u = Pad(x, pads)
        c = Conv(u, w1)
        m = GlobalAveragePool(c)
        f = Flatten(m)
        e = Gather(w2, ids)
        k = ReduceMean<axes=[1], keepdims=0>(e)
        j = Concat<axis=1>(f, k)
        y = MatMul(j, w3)
        z = Mul(ids, o)
    }"""
    numbers = {
        "four": [4], "zero_i": [0], "one": [1], "ends": [1, 1, 1, 1], "pairs": [-1, 2], "last": [-1],
        "first": [-1000], "rows": [0], "back": [-1], "flat": [-1],
    }  # fmt: skip
    source = with_weights(parse(text, 13, **numbers), {"w1": (6, 4, 3, 3), "w2": (9, 5), "w3": (11, 8)})
    rng = np.random.default_rng(0)
    given = [
        {"x": rng.standard_normal((2, 4, 6, 6)).astype(np.float32), "ids": rng.integers(0, 9, (2, size))}
        for size in (3, 3, 5)
    ]
    written = checked(source, tmp_path, 2, given)
    assert "Pad" not in {node.op_type for node in written.graph.node}


def test_outputs_whose_sizes_depend_on_values_are_as_far_off_as_can_be_where_they_differ():
    error = RelativeError()
    error.add({"y": np.ones(3)}, {"y": np.ones(3)})
    assert error.value == 0
    error.add({"y": np.array([1.0, np.inf, np.nan])}, {"y": np.array([1.0, np.inf, np.nan])})
    assert error.value == 0
    for wrong in (np.ones(2), np.array([1.0, np.nan, 1.0])):
        error = RelativeError()
        error.add({"y": np.ones(3)}, {"y": wrong})
        assert error.value == np.inf
