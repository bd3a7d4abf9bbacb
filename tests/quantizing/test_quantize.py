"""Networks of float32 made networks of bytes, against ONNX Runtime and against themselves."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import cpuconv
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError
from support.graph.floats import NETWORKS, feeds, network, run_all, steps
from support.graphs import normal, parse

ort = pytest.importorskip("onnxruntime")


def relative(a, b) -> float:
    """The root of the mean square of a difference, over that of `b`."""
    return float(np.sqrt(np.square(a - b, dtype=np.float64).sum() / np.square(b, dtype=np.float64).sum()))


@pytest.fixture(params=NETWORKS)
def source(request) -> onnx.ModelProto:
    return network(request.param)


def quantized(model, path, samples=None, **options) -> onnx.ModelProto:
    samples = feeds(model, 12, batch=8) if samples is None else samples
    cpuconv.quantize(model, samples, output=path / "q.onnx", threads=1, refuse_slower=False, **options)
    return onnx.load(path / "q.onnx")


@pytest.mark.parametrize("options", [{}, {"activations": "int8"}, {"method": "minmax", "full_range": True}], ids=str)
def test_every_tensor_of_bytes_is_one_unit_from_another_engines_at_most(source, options, tmp_path):
    model = quantized(source, tmp_path, **options)
    found = steps(model, feeds(source, 1, seed=9)[0])
    assert len(found) > 8
    for part, given in found:
        (expected,) = run_all(part, given, fused=False).values()
        (result,) = cpuconv.compile(part, threads=1).run(given).values()
        assert result.dtype == expected.dtype == options.get("activations", "uint8")
        assert np.abs(result.astype(int) - expected).max() <= 1, part.graph.output[0].name


@pytest.mark.parametrize("batch", [1, 3])
def test_engines_agree_on_the_file_and_its_outputs_are_near_those_of_floats(source, batch, tmp_path):
    model = quantized(source, tmp_path)
    for feed in feeds(source, 3, batch, seed=5):
        exact, theirs = run_all(source, feed), run_all(model, feed)
        ours = cpuconv.compile(model, threads=1).run(feed)
        for name, array in exact.items():
            assert relative(ours[name], array) < 0.05
            assert relative(ours[name], theirs[name]) < 0.02


def test_products_compute_with_integers(source, tmp_path):
    model = quantized(source, tmp_path)
    compiled = cpuconv.compile(model, threads=1, input_shapes={"x": feeds(source, 1)[0]["x"].shape})
    names = [row["op"] for row in compiled.explain().to_dict()["operators"]]
    left = {"Conv", "ConvTranspose", "Linear", "MatMul", "Gemm", "Softmax", "ReduceMean"} & {*names}
    assert not left, names


def test_open_sizes_metadata_and_names_stay(source, tmp_path):
    source.metadata_props.append(onnx.StringStringEntryProto(key="names", value="{0: 'cat'}"))
    model = quantized(source, tmp_path)
    assert [info.name for info in model.graph.output] == [info.name for info in source.graph.output]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert [(each.key, each.value) for each in model.metadata_props] == [("names", "{0: 'cat'}")]
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("size", ["N", "6"])
def test_padding_and_normalisation_go_into_one_convolution(size, tmp_path):
    """As exporters of TensorFlow write them: tensors in between are not named in the model."""
    text = f"""g (float[1,4,{size},{size}] x) => (float[1,4,h,w] y) {{
        a = Pad(x, pads)
        b = Conv<kernel_shape=[3,3], strides=[2,2]>(a, w)
        c = BatchNormalization(b, scale, shift, mean, variance)
        d = Relu(c)
        y = Conv(d, v)
    }}"""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((4, 4, 3, 3)) / 6, "v": rng.standard_normal((4, 4, 1, 1)) / 2}
    arrays |= {name: rng.uniform(0.5, 2, 4) for name in ("scale", "shift", "mean", "variance")}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    source = parse(text, 17, **arrays, pads=np.int64([0, 0, 0, 1, 0, 0, 1, 1]))
    samples = [{"x": rng.standard_normal((1, 4, 6, 6), np.float32)} for _ in range(4)]
    model = quantized(source, tmp_path, samples)
    assert not {"Pad", "BatchNormalization"} & {node.op_type for node in model.graph.node}
    assert relative(run_all(model, samples[0])["y"], run_all(source, samples[0])["y"]) < 0.05


def test_scales_of_tensors_are_scalars(source, tmp_path):
    model = quantized(source, tmp_path)
    dims = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    whole = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    assert whole and all(dims[name] == [] for node in whole for name in node.input[1:])


def test_outputs_whose_shape_the_model_does_not_state_have_a_rank(source, tmp_path):
    for info in source.graph.output:
        info.type.tensor_type.ClearField("shape")
    model = quantized(source, tmp_path)
    onnx.checker.check_model(model, full_check=True)
    assert [len(info.type.tensor_type.shape.dim) for info in model.graph.output] == (
        [2] if len(model.graph.output) == 1 else [4, 2]
    )


def test_weights_are_bytes_by_channel_and_never_saturate(source, tmp_path):
    model = quantized(source, tmp_path)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = {name: array for name, array in arrays.items() if array.dtype == np.int8 and array.ndim > 1}
    assert len(weights) == sum(
        node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") for node in source.graph.node
    )
    axes = {node.input[0]: node.attribute[0].i for node in model.graph.node if node.input[0] in weights}
    for name, array in weights.items():
        for row in np.moveaxis(array.astype(int), axes[name], 0).reshape(array.shape[axes[name]], -1):
            ordered = np.sort(row)
            assert ordered[-2:].clip(0).sum() <= 128 and ordered[:2].clip(max=0).sum() >= -128
    full = quantized(source, tmp_path, full_range=True)
    assert (
        max(np.abs(numpy_helper.to_array(tensor)).max() for tensor in full.graph.initializer if tensor.name in weights)
        == 127
    )


def test_kept_nodes_stay_floats(tmp_path):
    source = network("residual")
    names = [f"node{at}" for at in range(len(source.graph.node))]
    for node, name in zip(source.graph.node, names, strict=True):
        node.name = name
    made = cpuconv.quantize(
        source, feeds(source, 2), output=tmp_path / "q.onnx", keep=["node0", "node16"], threads=1, refuse_slower=False
    )
    assert made.kept == ("node0", "node16") and len(made.layers) == 6
    assert {layer.why for layer in made.layers} == {"", "asked for"}
    weights = [tensor for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer if len(tensor.dims) > 1]
    floats = [tuple(tensor.dims) for tensor in weights if tensor.data_type == onnx.TensorProto.FLOAT]
    assert sorted(floats) == [(7, 20), (16, 3, 3, 3)]


def test_a_clamp_is_a_part_of_the_range(tmp_path):
    model = quantized(network("excited"), tmp_path, method="minmax")
    assert not {"Relu", "Clip"} & {node.op_type for node in model.graph.node}
    kept = quantized(network("residual"), tmp_path)
    relus = [node.output[0] for node in kept.graph.node if node.op_type == "Relu"]
    assert relus == ["g1"]  # whose bytes are those of the concatenation, negative ones too


def test_a_concatenations_inputs_have_its_scale(tmp_path):
    model = quantized(network("residual"), tmp_path)
    scales = {node.output[0]: node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    by_tensor = {node.input[0]: node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert len(set(scales.values())) < len(scales)
    assert by_tensor["g1"] == by_tensor["h"] == by_tensor["j"] == by_tensor["p"]


@pytest.mark.parametrize("form", ["feeds", "arrays", "npz", "reader", "generator"])
def test_samples_of_every_form_give_the_same_file(form, tmp_path):
    source = network("residual")
    samples = feeds(source, 3)
    given: object = samples
    if form == "arrays":
        given = [feed["x"] for feed in samples]
    elif form == "generator":
        given = (feed for feed in samples)
    elif form == "npz":
        given = tmp_path / "data"
        given.mkdir()
        for at, feed in enumerate(samples):
            np.savez(given / f"{at}.npz", **feed)
    elif form == "reader":
        rest = iter(samples)
        given = type("Reader", (), {"get_next": lambda self: next(rest, None)})()
    expected = quantized(source, tmp_path, samples)
    assert quantized(source, tmp_path, given) == expected


def test_images_are_cut_and_scaled(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    source = network("residual")
    model = quantized(source, tmp_path, tmp_path)
    wide, high = round(40 * 256 / 224 * 12 / 30), round(12 * 256 / 224)
    small = np.asarray(image.fromarray(pixels).resize((wide, high), image.Resampling.BILINEAR), np.float32)
    top, left = (high - 12) // 2, (wide - 12) // 2
    cut = small[top : top + 12, left : left + 12] / 255
    x = ((cut - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])).transpose(2, 0, 1)[None]
    expected = quantized(source, tmp_path, [np.ascontiguousarray(x)])
    ours, theirs = ({t.name: numpy_helper.to_array(t) for t in m.graph.initializer} for m in (model, expected))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-4, atol=1)


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    source = network("residual")
    before = quantized(source, tmp_path).SerializeToString()

    def interrupted(what: str, done: int, total: int) -> None:
        if "comparing" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantized(source, tmp_path, progress=interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]
    assert onnx.load(tmp_path / "q.onnx").SerializeToString() == before


def test_progress_tells_every_step(tmp_path):
    told = []
    quantized(network("residual"), tmp_path, progress=lambda *state: told.append(state))
    assert all(0 <= done <= total for _, done, total in told)
    assert {what for what, done, total in told if done == total} == {what for what, _, _ in told}


def test_operators_that_onnx_evaluates_are_written_as_they_were(tmp_path):
    text = """g (float[1,4,6,6] x) => (float[1,4,6,6] y) {
        a = Conv<pads=[1,1,1,1]>(x, w, b)
        c = Det(a)
        d = Unsqueeze(c, axes)
        y = Add(a, d)
    }"""
    rng = np.random.default_rng(0)
    drawn = normal(rng, {"w": (4, 4, 3, 3), "b": (4,)})
    source = parse(text, 17, w=drawn["w"] / 6, b=drawn["b"], axes=np.int64([2, 3]))
    feed = {"x": rng.standard_normal((1, 4, 6, 6)).astype(np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cpuconv.CpuconvWarning)
        model = quantized(source, tmp_path, [feed])
    assert "Det" in {node.op_type for node in model.graph.node}
    assert relative(run_all(model, feed)["y"], run_all(source, feed)["y"]) < 0.3


def test_control_flow_is_written_with_its_bodies(tmp_path):
    """Bodies read outer values by name, weights and what was computed; in the file they are of its opset."""
    text = """g (float[1,4,6,6] x, bool c, int64 n) => (float[1,4,6,6] y, float[N,4] z) {
        a = Conv(x, w)
        r = Relu(a)
        d = If(c)<
            then_branch=t () => (float[1,4,6,6] b) { b = Relu(r) },
            else_branch=e () => (float[1,4,6,6] b) { v = Conv(r, w) b = Neg(v) }
        >
        e, z = Loop<body=l (int64 i, bool k, float[1,4,6,6] d) => (bool k, float[1,4,6,6] q, float[4] s) {
            p, m = Split<axis=1, num_outputs=2>(d)
            j = Concat<axis=1>(m, p)
            q = Add(j, r)
            s = ReduceSum<keepdims=0>(q, axes)
        }>(n, , d)
        y = Add(e, a)
    }"""
    rng = np.random.default_rng(0)
    source = parse(text, 18, w=(rng.standard_normal((4, 4, 1, 1)) / 2).astype(np.float32), axes=np.int64([0, 2, 3]))
    feed = {"x": rng.standard_normal((1, 4, 6, 6)).astype(np.float32)}
    for c, n in ((True, 2), (False, 3)):
        each = feed | {"c": np.array(c), "n": np.array(n)}
        model = quantized(source, tmp_path, [each])
        assert {"If", "Loop"} <= {node.op_type for node in model.graph.node}
        for name in "yz":
            assert relative(run_all(model, each)[name], run_all(source, each)[name]) < 0.3


def test_what_cannot_be_written_is_told_before_samples_are_run(tmp_path):
    source = parse(
        "g (float[1,4,6,2] x) => (float[1,4,6,2] y) { a = Conv(x, w) y = DFT<axis=2>(a) }",
        17,
        w=np.ones((4, 4, 1, 1), np.float32),
    )
    told: list[object] = []
    feed = {"x": np.ones((1, 4, 6, 2), np.float32)}
    with pytest.raises(SourceError, match="must be of opset 21"), pytest.warns(cpuconv.CpuconvWarning, match="DFT run"):
        quantized(source, tmp_path, [feed], progress=lambda *state: told.append(state))
    assert not told and not list(tmp_path.iterdir())


WRONG = {
    "data, empty": ({"data": []}, ArgumentError, "'data' must be one sample or more"),
    "data, one": ({"data": {"x": np.zeros(1)}}, ArgumentTypeError, "'data' must be an iterable of feeds"),
    "data, number": ({"data": 3}, ArgumentTypeError, "'data' must be an iterable of feeds"),
    "data, no folder": ({"data": "nowhere"}, ArgumentError, "'data' must be a folder"),
    "data, no samples' names": ({"data": [(1, 2)]}, ArgumentTypeError, r"data\[0\].*'feed\['x'\]' must be"),
    "data, rank": ({"data": [np.zeros((3, 12, 12), np.float32)]}, ArgumentError, r"data\[0\].*of rank 4"),
    "data, name": ({"data": [{"z": np.zeros(1)}]}, ArgumentError, r"data\[0\].*arrays for x"),
    "data, size": (
        {"data": [np.zeros((1, 3, 12, 12), np.float32), np.zeros((1, 3, 12, 9), np.float32)]},
        ArgumentError,
        r"data\[1\].*fits float32\[N,3,12,12\], not \(1, 3, 12, 9\)",
    ),
    "data, dtype": ({"data": [np.zeros((1, 3, 12, 12))]}, ArgumentTypeError, r"data\[0\].*float32"),
    "method": ({"method": "guess"}, ArgumentError, "'method' must be one of mse"),
    "percentile": ({"percentile": 20}, ArgumentError, "'percentile' must be from 50 to 100, not 20"),
    "activations": ({"activations": "int4"}, ArgumentError, "'activations' must be one of uint8"),
    "activations, list": ({"activations": []}, ArgumentError, "'activations' must be one of uint8, int8, not \\[\\]"),
    "method, list": ({"method": []}, ArgumentError, "'method' must be one of mse"),
    "equalize": ({"equalize": "yes"}, ArgumentTypeError, "'equalize' must be True, False or None"),
    "correct_biases": ({"correct_biases": "no"}, ArgumentTypeError, "'correct_biases' must be True or False, not 'no'"),
    "refuse_slower": ({"refuse_slower": None}, ArgumentTypeError, "'refuse_slower' must be True or False"),
    "full_range": ({"full_range": 1}, ArgumentTypeError, "'full_range' must be True or False"),
    "threads": ({"threads": "auto"}, ArgumentTypeError, "'threads' must be an integer or None, not 'auto'"),
    "keep": ({"keep": ["nothing"]}, ArgumentError, "'keep' must be names among"),
    "keep, None": ({"keep": None}, ArgumentTypeError, "'keep' must be a sequence of names, not None"),
    "keep, text": ({"keep": "a"}, ArgumentTypeError, "'keep' must be a sequence of names"),
    "tolerance": ({"tolerance": -1}, ArgumentError, "'tolerance' must be above 0, not -1"),
    "tolerance, text": ({"tolerance": "1%"}, ArgumentTypeError, "'tolerance' must be a number"),
    "tolerance, small": ({"tolerance": 1e-9}, ArgumentError, "the error of one layer"),
    "metric": ({"metric": 3}, ArgumentTypeError, "'metric' must be a callable"),
    "metric, value": (
        {"metric": lambda a, b: "x", "tolerance": 1},
        ArgumentError,
        "'metric' must be a function that returns",
    ),
    "metric, below 0": (
        {"metric": lambda a, b: -1, "tolerance": 1},
        ArgumentError,
        "'metric' must be a function that returns",
    ),
    "metric, NaN": (
        {"metric": lambda a, b: np.nan, "tolerance": 1},
        ArgumentError,
        "above inf, the error of one layer",
    ),
    "layers": ({"layers": -1}, ArgumentError, "'layers' must be 0 or more"),
    "output": ({"output": "nowhere/q.onnx"}, ArgumentError, "'output' must be a file in a folder that exists"),
    "mean": ({"image_mean": "abc"}, ArgumentTypeError, "'image_mean' must be a sequence of numbers"),
    "std": ({"image_std": (0,)}, ArgumentError, "'image_std' must be"),
    "values": ({"data": [np.full((1, 3, 12, 12), np.nan, np.float32)]}, SourceError, "finite numbers"),
}


@pytest.mark.parametrize("changed, error, text", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(changed, error, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = network("residual")
    arguments = {"source": source, "data": feeds(source, 1), "output": "q.onnx", "refuse_slower": False} | changed
    with pytest.raises(error, match=text):
        cpuconv.quantize(arguments.pop("source"), arguments.pop("data"), **arguments)
    assert not list(tmp_path.iterdir())


def test_what_has_nothing_to_quantise_is_refused(tmp_path):
    plain = parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    with pytest.raises(SourceError, match="no convolution"):
        quantized(plain, tmp_path, [np.zeros((2, 3), np.float32)])
    source = network("residual")
    model = quantized(source, tmp_path)
    with pytest.raises(SourceError, match="quantised already"):
        quantized(model, tmp_path, feeds(source, 1))
    cpuconv.compile(source).save(tmp_path / "saved")
    with pytest.raises(SourceError, match="saved is a saved model"):
        quantized(tmp_path / "saved", tmp_path, feeds(source, 1))


def test_layers_whose_sizes_are_found_in_the_run_are_refused(tmp_path):
    text = """g (float[1,3,8,8] x) => (float[] y) <int64[3] shape = {1, 1, -1}> {
        places = NonZero(x)
        numbers = Cast<to: int = 1>(places)
        rows = Reshape(numbers, shape)
        y = Conv<kernel_shape: ints = [1]>(rows, w)
    }"""
    model = parse(text, w=np.ones((4, 1, 1), np.float32))
    feed = {"x": np.ones((1, 3, 8, 8), np.float32)}
    with pytest.raises(SourceError, match="Conv node 'y': its sizes must follow from input sizes"):
        cpuconv.quantize(model, [feed], output=tmp_path / "made.onnx")
