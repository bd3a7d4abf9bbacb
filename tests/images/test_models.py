"""Networks that take pictures: compiled, saved, from the command line, and as data of a quantisation."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import cpuconv
from cpuconv.cli.main import main
from cpuconv.errors import ArgumentError, ArgumentTypeError
from support.graph.floats import with_weights
from support.graphs import parse
from support.pictures import random

TEXT = """g (float[{batch},3,{size},{width}] x) => (float[{batch},4] y) {{
    a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)
    r = Relu(a)
    p = GlobalAveragePool(r)
    f = Flatten(p)
    y = MatMul(f, m)
}}"""
WEIGHTS = {"w": (8, 3, 3, 3), "m": (8, 4)}
IMAGENET = cpuconv.Image.imagenet(shorter=36)


def network(batch=1, size=32, width=32):
    return with_weights(parse(TEXT.format(batch=batch, size=size, width=width), 17), WEIGHTS)


def by_hand(picture, image, shape=(32, 32)):
    from support.pictures import converter

    return converter(shape, image)(picture).array


@pytest.mark.parametrize("threads", [1, 2])
def test_pictures_give_what_their_arrays_give(threads):
    plain = cpuconv.compile(network(), threads=threads)
    model = cpuconv.compile(network(), threads=threads, images={"x": IMAGENET})
    for seed, size in enumerate([(40, 50), (100, 30), (1, 1), (333, 517)]):
        picture = random(*size, 3, seed=seed)
        expected = plain(by_hand(picture, IMAGENET))
        np.testing.assert_array_equal(model(picture), expected)
        outputs, places = model.run({"x": [picture]}, info=True)
        np.testing.assert_array_equal(outputs["y"], expected)
        assert [place.picture for place in places["x"]] == [size]
        out = {"y": np.zeros((1, 4), np.float32)}
        assert model.run({"x": picture}, out)["y"] is out["y"]
        np.testing.assert_array_equal(out["y"], expected)
    assert plain.run({"x": by_hand(picture, IMAGENET)}, info=True)[1] == {}
    assert "Conv" in str(model.profile({"x": picture}, 1))


def test_batches_and_open_sizes():
    image = cpuconv.Image.yolo(shape=(24, 40))
    model = cpuconv.compile(network("N", "S", "T"), images={"x": image}, threads=1)
    plain = cpuconv.compile(network("N", "S", "T"), threads=1)
    for count in (1, 3, 2):
        listed = [random(30 + at, 50, 3, seed=at) for at in range(count)]
        arrays = np.concatenate([by_hand(each, image, (24, 40)) for each in listed])
        np.testing.assert_array_equal(model.run({"x": listed})["y"], plain.run({"x": arrays})["y"])
    both = model.run({"x": np.stack([listed[0]] * 2)})["y"]
    np.testing.assert_allclose(both[1], model(listed[0])[0], rtol=1e-5)


def test_saved_models_keep_it(tmp_path):
    picture, file = random(50, 60, 3), tmp_path / "model.cpuconv"
    for sizes in (dict(), dict(batch="N")):
        model = cpuconv.compile(network(**sizes), images={"x": IMAGENET}, threads=1)
        expected = model(picture)
        model.save(file)
        again = cpuconv.load(file)
        assert again.images == {"x": IMAGENET}
        np.testing.assert_array_equal(again(picture), expected)
        again.save(file)
        np.testing.assert_array_equal(cpuconv.load(file)(picture), expected)


def test_wrong_arguments():
    with pytest.raises(ArgumentTypeError, match="'images' must be a dict of cpuconv.Image"):
        cpuconv.compile(network(), images=IMAGENET)
    with pytest.raises(ArgumentTypeError, match=r"images\['x'\]' must be a cpuconv.Image"):
        cpuconv.compile(network(), images={"x": "yolo"})
    with pytest.raises(ArgumentError, match="keys are among x, not one with 'z'"):
        cpuconv.compile(network(), images={"z": IMAGENET})
    with pytest.raises(ArgumentError, match=r"images\['x'\].shape' must be \(H, W\), which x leaves open"):
        cpuconv.compile(network(1, "S"), images={"x": IMAGENET})
    with pytest.raises(ArgumentError, match=r"shape' must be \(32, 32\)"):
        cpuconv.compile(network(), images={"x": cpuconv.Image(shape=(16, 16))})
    with pytest.raises(ArgumentError, match=r"mean' must be 1 or 3 numbers, not 2"):
        cpuconv.compile(network(), images={"x": cpuconv.Image(mean=(1, 2))})
    matrix = with_weights(parse("g (float[4,8] x) => (float[4,4] y) { y = MatMul(x, m) }", 17), {"m": (8, 4)})
    with pytest.raises(ArgumentError, match="for an input"):
        cpuconv.compile(matrix, images={"x": IMAGENET})
    model = cpuconv.compile(network(), images={"x": IMAGENET})
    with pytest.raises(ArgumentTypeError, match="a picture of uint8"):
        model.run({"x": np.zeros((1, 3, 32, 32), np.float32)})
    with pytest.raises(ArgumentError, match="without 'x'"):
        model.run({})
    with pytest.raises(ArgumentTypeError, match="'feed'"):
        model.run([random(4, 4, 3)])


def test_several_threads_run_one_model():
    model = cpuconv.compile(network(), images={"x": IMAGENET}, threads=2)
    listed = [random(20 + 3 * at, 70 - 2 * at, 3, seed=at) for at in range(8)]
    expected, wrong = [model(picture) for picture in listed], []

    def run(first):
        for at in range(24):
            number = (first + at) % 8
            if not np.array_equal(model(listed[number]), expected[number]):
                wrong.append(number)

    workers = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert not wrong


@pytest.fixture
def photo(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(random(40, 60, 3)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_the_command_runs_a_picture(photo, tmp_path, capsys):
    import onnx

    onnx.save(network(), tmp_path / "model.onnx")
    assert main(["run", str(tmp_path / "model.onnx"), "--image", str(photo), "--output", str(tmp_path / "out")]) == 0
    assert str(photo)[-9:] in capsys.readouterr().out
    image = cpuconv.Image.imagenet()
    expected = cpuconv.compile(network(), images={"x": image})(random(40, 60, 3))
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), expected)
    cpuconv.compile(network(), images={"x": IMAGENET}).save(tmp_path / "saved")
    for more in ([], ["--preset", "yolo"]):
        assert main(["run", str(tmp_path / "saved"), "--image", str(photo), "--json", *more]) == 0
        assert json.loads(capsys.readouterr().out)["inputs"][0]["from"] == str(photo)
    timed = ["--image", str(photo), "-d", "0.05", "--warmup", "0.01", "--json"]
    for path in ("model.onnx", "saved"):
        assert main(["benchmark", str(tmp_path / path), *timed]) == 0
    assert main(["run", str(tmp_path / "saved")]) == 0
    capsys.readouterr()
    assert main(["run", str(tmp_path / "model.onnx"), "--image", str(tmp_path / "model.onnx")]) == 2
    assert "--image must be images that can be read" in capsys.readouterr().err


def test_quantisation_reads_images_alike(photo, tmp_path):
    from cpuconv.network.ports import Port
    from cpuconv.quantizing.data.images import ImageForm
    from cpuconv.quantizing.data.samples import samples_of

    ports = [Port("x", (1, 3, 32, 32), np.dtype(np.float32))]
    (feed,) = samples_of(photo.parent, ports, ImageForm(image=cpuconv.Image.yolo()))
    np.testing.assert_array_equal(feed["x"], by_hand(random(40, 60, 3)[:, :, ::-1], cpuconv.Image.yolo()))
    onnx = pytest.importorskip("onnx")
    onnx.save(network(), tmp_path / "model.onnx")
    made = [
        str(tmp_path / "model.onnx"),
        "--data",
        str(photo.parent),
        "--preset",
        "yolo",
        "-o",
        str(tmp_path / "q.onnx"),
    ]
    assert main(["quantize", *made]) == 0
    model = cpuconv.compile(tmp_path / "q.onnx", images={"x": cpuconv.Image.yolo()}, threads=1)
    assert model.inputs[0].dtype == np.uint8  # pixels are written as the first layer's integers
    expected = cpuconv.compile(network(), threads=1)(feed["x"])
    assert np.abs(model(random(40, 60, 3)[:, :, ::-1]) - expected).max() < 0.1 * np.abs(expected).max()
    with pytest.raises(ArgumentTypeError, match="'image' must be a cpuconv.Image"):
        cpuconv.quantize(network(), photo.parent, output=tmp_path / "q.onnx", image="yolo")
