"""Networks of torchvision, and a U-Net, with random weights, exported by torch.onnx.export."""

from __future__ import annotations

import functools
import io
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import onnx

from bench.networks import Network, Shapes
from bench.networks.model import settle

if TYPE_CHECKING:
    import torch

OPSET = 17
IMAGE = (1, 3, 224, 224)


def torchvision() -> ModuleType:
    """Import the package torchvision.

    Its compiled operators only load with the PyTorch build they were made for, often not with a CPU build. Then the
    import fails at two operators that PyTorch does not know; they are defined here. No network here uses them.
    """
    import torch

    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        import torchvision

        torchvision._names = library  # keeps the definitions alive
    return torchvision


def exported(build: Callable[[], torch.nn.Module], inputs: Shapes) -> onnx.ModelProto:
    """Export a network with random weights as a model with the input ``x`` and the output ``y``."""
    import torch

    (shape,) = inputs.values()
    torch.manual_seed(0)
    network = build().eval()
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):  # initial values would make it an identity
            for scale, shift in ((layer.weight, layer.bias), (layer.running_var, layer.running_mean)):
                torch.nn.init.uniform_(scale, 0.5, 1.5)
                torch.nn.init.normal_(shift, std=0.1)
    file = io.BytesIO()
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "N"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the old exporter; the dynamo exporter needs onnxscript
        torch.onnx.export(network, (torch.zeros(shape),), file, opset_version=OPSET, dynamo=False, **names)
    model = onnx.load_from_string(file.getvalue())
    settle(model, inputs)
    return model


def _classifier(name: str, **options: object) -> torch.nn.Module:
    return torchvision().models.get_model(name, weights=None, **options)


def _segmenter(name: str) -> torch.nn.Module:
    return torchvision().models.get_model(name, weights=None, weights_backbone=None)


def u_net(depth: int = 4, width: int = 32, classes: int = 2) -> torch.nn.Module:
    """Build a U-Net (Ronneberger et al. 2015) with padding and batch normalisation."""
    import torch
    from torch import nn

    def double(inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            conv = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [width << level for level in range(depth + 1)]
            pairs = list(zip(widths, widths[1:], strict=False))
            self.first = double(3, width)
            self.down = nn.ModuleList(double(fine, coarse) for fine, coarse in pairs)
            self.up = nn.ModuleList(nn.ConvTranspose2d(coarse, fine, 2, stride=2) for fine, coarse in pairs)
            self.join = nn.ModuleList(double(coarse, fine) for fine, coarse in pairs)
            self.last = nn.Conv2d(width, classes, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            levels = [self.first(x)]
            for down in self.down:
                levels.append(down(nn.functional.max_pool2d(levels[-1], 2)))
            x = levels.pop()
            for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
                x = join(torch.cat([levels.pop(), up(x)], 1))
            return self.last(x)

    return UNet()


def _network(
    name: str,
    build: Callable[[], torch.nn.Module],
    shape: tuple[int, ...] = IMAGE,
    small: tuple[int, ...] = (1, 3, 64, 64),
    needs: tuple[str, ...] = ("onnx", "torch", "torchvision"),
) -> Network:
    make = functools.partial(exported, build)
    return Network(name, {"x": shape}, make, {need: need for need in needs}, {"x": small})


NETWORKS = (
    *(
        _network(name, functools.partial(_classifier, of, **options))
        for name, of, options in (
            ("resnet18", "resnet18", {}),
            ("mobilenet_v2", "mobilenet_v2", {}),
            ("mobilenet_v3_large", "mobilenet_v3_large", {}),
            ("efficientnet_b0", "efficientnet_b0", {}),
            ("regnet_y_400mf", "regnet_y_400mf", {}),
            ("shufflenet_v2", "shufflenet_v2_x1_0", {}),
            ("densenet121_torch", "densenet121", {}),
            (
                "convnext_tiny",
                "convnext_tiny",
                {"layer_scale": 1.0},
            ),  # with the initial value, blocks would be identities
        )
    ),
    _network("fcn_resnet50", functools.partial(_segmenter, "fcn_resnet50")),
    _network("u_net", u_net, (1, 3, 256, 256), needs=("onnx", "torch")),
)
