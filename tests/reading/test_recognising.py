"""Files of other kinds than ONNX models: the error says what they are, and what to do."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import cpuconv
from autotune.cli.options import USAGE
from cpuconv.cli.main import main
from cpuconv.errors import MissingFileError, SourceError
from support.graphs import parse

MODEL = parse("g (float[1,2] x) => (float[1,2] y) { y = Relu(x) }")


def _zipped(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return stream.getvalue()


def _npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=np.zeros(3))
    return stream.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
XML = b'<?xml version="1.0"?>\n<net name="resnet" version="11">\n<layers/></net>'
FILES: dict[str, tuple[bytes, str, str]] = {
    "a PyTorch archive": (_zipped("net/data.pkl", "net/data/0"), "a PyTorch file", "from_torch"),
    "an old PyTorch file": (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M", "a PyTorch file", "from_torch"),
    "a pointer": (LFS, "a Git LFS pointer", "git lfs pull"),
    "a page": (b"\n<!DOCTYPE html><html><body>404</body></html>", "a page of HTML", "get the file again"),
    "TensorFlow Lite": (b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model", "--tflite FILE"),
    "OpenVINO": (XML, "an OpenVINO model", "the ONNX model that it was made from"),
    "ORT": (b"\x18\0\0\0ORTM" + bytes(40), "a model in ONNX Runtime's own format", "ONNX model"),
    "Keras": (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file", "tf2onnx"),
    "safetensors": (b"\x40\0\0\0\0\0\0\0" + b'{"weight":{"dtype":"F32"}}', "weights without a network", "from_torch"),
    "arrays": (_npz(), "an .npz file", "not as a model"),
    "an archive": (_zipped("net.onnx"), "a compressed archive", "unpack"),
    "nothing": (b"", "an empty file", "get the file again"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("read", [cpuconv.compile, cpuconv.load, cpuconv.InferenceSession])
def test_wrong_files(kind: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    content, what, remedy = FILES[kind]
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="net.onnx") as caught:
        read(path)
    assert what in str(caught.value) and remedy in str(caught.value)


def test_bytes_are_recognised_too() -> None:
    with pytest.raises(SourceError, match="model must be an ONNX model, and is a Git LFS pointer"):
        cpuconv.compile(LFS)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="must be an ONNX file, and is a folder: name a file"):
        cpuconv.compile(tmp_path)
    (tmp_path / "net.onnx").write_bytes(b"")
    with pytest.raises(SourceError, match=r"a folder: name a file in it, such as 'net\.onnx'"):
        cpuconv.compile(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(SourceError, match="--saved-model"):
        cpuconv.compile(tmp_path)


@pytest.mark.parametrize("read", [cpuconv.compile, cpuconv.load])
def test_a_missing_file_is_a_file_not_found(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "nowhere.onnx"
    with pytest.raises(FileNotFoundError) as caught:
        read(path)
    error = caught.value
    assert isinstance(error, MissingFileError) and isinstance(error, SourceError)
    assert error.filename == str(path) and "nowhere.onnx" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_load_of_an_onnx_model_names_compile_and_the_other_way_round(tmp_path: Path) -> None:
    path, saved = tmp_path / "net.onnx", tmp_path / "net.cpuconv"
    onnx.save(MODEL, path)
    with pytest.raises(SourceError, match=r"net\.onnx is no saved model, and is an ONNX model, which cpuconv\.compile"):
        cpuconv.load(path)
    cpuconv.compile(path).save(saved)
    with pytest.raises(SourceError, match=r"is a saved model: use cpuconv\.load"):
        cpuconv.compile(saved)


def test_on_the_command_line_it_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.pt"
    path.write_bytes(FILES["a PyTorch archive"][0])
    assert main(["run", str(path)]) == USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "and is a PyTorch file" in line
    assert main(["run", str(tmp_path / "none.onnx")]) == USAGE
