"""`cpuconv.from_torch`: models of modules, programs and files, with their names, sizes and errors."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpuconv
from baselib.interpreter import python
from cpuconv.errors import ArgumentTypeError, SourceError

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    """A convolution with a dict of results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: Any, scale: Any = None) -> Any:
        y = self.conv(image)
        y = y if scale is None else y * scale
        return {"logits": y, "none": None, "parts": (y.mean((2, 3)), y.amax(1))}


NET, X = Net().eval(), torch.randn(2, 3, 8, 7)


def expected(x: Any) -> list[np.ndarray]:
    with torch.no_grad():
        found = NET(x)
    return [each.numpy() for each in (found["logits"], *found["parts"])]


def close(results: Any, wanted: list[np.ndarray]) -> None:
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_names_and_sizes() -> None:
    """Inputs have the names of arguments, outputs their keys and places; None is left out."""
    batch = torch.export.Dim("batch", min=1, max=64)
    model = cpuconv.from_torch(NET, (X,), dynamic_shapes={"image": {0: batch}}, threads=1)
    assert [port.name for port in model.inputs] == ["image"]
    assert [port.name for port in model.outputs] == ["logits", "parts_0", "parts_1"]
    assert isinstance(model.inputs[0].shape[0], str)
    for count in (1, 3, 2):
        x = torch.randn(count, 3, 8, 7)
        close(model.run({"image": x.numpy()}).values(), expected(x))


def test_keyword_arguments() -> None:
    """Arguments by name are inputs, too."""
    model = cpuconv.from_torch(NET, (X,), {"scale": torch.tensor(2.0)})
    results = model.run({"image": X.numpy(), "scale": np.float32(3) * np.ones((), np.float32)})
    close([results["logits"]], [expected(X)[0] * 3])


def test_outputs_that_are_inputs() -> None:
    """Outputs that are inputs, views of these, or another output are arrays of their own."""

    class Passing(torch.nn.Module):
        def forward(self, image: Any) -> Any:
            y = image * 2
            return {"image": image, "view": image[:, 1:], "y": y, "turned": y.mT, "again": y}

    x = X.numpy().copy()
    results = cpuconv.from_torch(Passing().eval(), (X,)).run({"image": x})
    assert [*results] == ["image_out", "view", "y", "turned", "again"]
    close(results.values(), [x, x[:, 1:], x * 2, (x * 2).swapaxes(2, 3), x * 2])
    for array in results.values():
        array += 1
    close([x, results["again"], results["turned"]], [X.numpy(), 2 * x + 1, 2 * x.swapaxes(2, 3) + 1])


def test_programs_and_files(tmp_path: Path) -> None:
    """An exported program, a file of one, and a saved model give equal results."""
    program, path = torch.export.export(NET, (X,)), tmp_path / "net.pt2"
    torch.export.save(program, path)
    models = [cpuconv.from_torch(program), cpuconv.compile(path)]
    models[0].save(tmp_path / "net.cpuconv")
    for model in (*models, cpuconv.load(tmp_path / "net.cpuconv")):
        close(model.run({"image": X.numpy()}).values(), expected(X))


def test_weights_are_shared() -> None:
    """Constants are the memory of the parameters."""
    from cpuconv.reading.aten.exported import read_module

    graph = read_module(NET, (X,))
    assert any(np.shares_memory(array, NET.conv.weight.detach().numpy()) for array in graph.constants.values())
    assert all(not array.flags.writeable for array in graph.constants.values())


def test_errors(tmp_path: Path) -> None:
    """Wrong arguments, and files, name the call to use."""
    with pytest.raises(ArgumentTypeError, match="from_torch"):
        cpuconv.compile(NET)
    with pytest.raises(ArgumentTypeError, match=r"such as \(x,\)"):
        cpuconv.from_torch(NET, X)
    with pytest.raises(ArgumentTypeError, match="ExportedProgram"):
        cpuconv.from_torch("net.pt")
    torch.save(NET.state_dict(), tmp_path / "net.pth")
    with pytest.raises(SourceError, match="from_torch"):
        cpuconv.compile(tmp_path / "net.pth")
    (tmp_path / "net.pt2").write_bytes(b"PK\x03\x04")
    with pytest.raises(SourceError, match=r"torch\.export\.load"):
        cpuconv.compile(tmp_path / "net.pt2")


def test_torch_is_not_imported() -> None:
    """The package, and compiling another source, do not import torch."""
    code = "import sys, cpuconv, cpuconv.api.network, cpuconv.api.from_torch; assert 'torch' not in sys.modules"
    subprocess.run(python("-c", code), check=True)
