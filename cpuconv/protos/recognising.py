"""Recognition of files that are not ONNX models, by their first bytes, with advice for the user."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from cpuconv.errors import MissingFileError, SourceError

_HEAD = 1 << 16  # bytes that are examined
_EXPORT = "make the module, load its weights, and give it to cpuconv.from_torch(module, example_inputs)"
_CONVERT = "convert it with python -m tf2onnx.convert"


def _starts(*beginnings: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(beginnings)


def _at(place: int, mark: bytes) -> Callable[[bytes], bool]:
    return lambda head: head[place : place + len(mark)] == mark


def _zip_with(*names: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(b"PK\x03\x04") and any(name in head for name in names)


def _text(*beginnings: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(beginnings)


# Test of a file's first bytes, description of the file, and advice; the first match counts.
_KINDS: tuple[tuple[Callable[[bytes], bool], str, str], ...] = (
    (lambda head: not head, "an empty file", "get the file again"),
    (
        _starts(b"version https://git-lfs.github.com/spec/"),
        "a Git LFS pointer, which stands for the file", "fetch that with git lfs pull",
    ),
    (_text(b"<!doctype html", b"<html"), "a page of HTML, as failed downloads leave", "get the file again"),
    (
        lambda head: _text(b"<?xml", b"<net")(head) and b"<net " in head,
        "an OpenVINO model", "use the ONNX model that it was made from",
    ),
    (_zip_with(b"/data.pkl", b"data.pkl", b"/code/"), "a PyTorch file", _EXPORT),
    (_starts(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"), "a PyTorch file", _EXPORT),
    (_zip_with(b".npy"), "an .npz file of arrays", "give it as samples or inputs, not as a model"),
    (_starts(b"\x93NUMPY"), "a .npy file of an array", "give it as an input, not as a model"),
    (_at(4, b"TFL3"), "a TensorFlow Lite model", f"{_CONVERT} --tflite FILE --output model.onnx"),
    (_at(4, b"ORTM"), "a model in ONNX Runtime's own format", "use the ONNX model that it was made from"),
    (_starts(b"\x89HDF\r\n\x1a\n"), "an HDF5 file, as of Keras", f"{_CONVERT} --keras FILE --output model.onnx"),
    (_at(4, b'\0\0\0\0{"'), "a file of weights without a network (safetensors)", _EXPORT),
    (_starts(b"GGUF"), "a GGUF file, of weights of a language model", "use an ONNX model"),
    (_starts(b"PK\x03\x04", b"\x1f\x8b", b"\xfd7zXZ", b"7z\xbc\xaf"), "a compressed archive", "unpack it"),
)  # fmt: skip


def check_recognised(content: bytes | memoryview, name: str) -> None:
    """Check that content does not begin like a file of another kind.

    Raises
    ------
    SourceError
        It does; the message names the kind and gives advice.
    """
    head = bytes(content[:_HEAD])
    for fits, what, remedy in _KINDS:
        if fits(head):
            raise SourceError(f"{name} must be an ONNX model, and is {what}: {remedy}.")


def unreadable(path: Path, wanted: str, error: OSError) -> SourceError:
    """Return the error for a path that cannot be read as the wanted file; a `FileNotFoundError` if it does not exist.

    For a folder, the message gives advice: name the model in it, or convert it.
    """
    message = f"Source {str(path)!r} must be {wanted} that can be read: {error}"
    if error.errno == errno.ENOENT:
        return MissingFileError(message, str(path))
    if path.is_dir():
        message = f"Source {str(path)!r} must be {wanted}, and is a folder: {_in_folder(path)}."
    return SourceError(message)


def _in_folder(path: Path) -> str:
    """Return advice for a folder."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        names = []
    if "saved_model.pb" in names:
        return f"{_CONVERT} --saved-model {path} --output model.onnx"
    models = [name for name in names if name.endswith((".onnx", ".cpuconv"))]
    return f"name a file in it, such as {models[0]!r}" if models else "name a file"
