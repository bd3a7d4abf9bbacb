"""Export of PyTorch modules with random weights, scaled so that activations have normal magnitude."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx

from bench.networks import Shapes

if TYPE_CHECKING:
    import torch

OPSET = 17
_SAMPLES = 4  # inputs whose statistics batch normalisations get
_MIN_PIXELS = 64  # pixels of all samples from which statistics are taken
_BIAS = 0.1  # standard deviation of biases and of tables that were all zeros
_SPREAD = (0.5, 1.5)  # range of scales

Pick = Callable[[Any], Any]


def export(build: Callable[[], torch.nn.Module], inputs: Shapes, pick: Pick | None = None) -> onnx.ModelProto:
    """Export a module with random weights; `pick` selects the tensors of its result that the model returns.

    Inputs have the names and shapes of `inputs`; outputs are ``y``, or ``y0``, ``y1`` and so on.
    """
    import torch

    torch.manual_seed(0)
    module = _picking(build().eval(), pick)
    feeds = [torch.randn(_SAMPLES, *shape[1:]) for shape in inputs.values()]
    one = tuple(feed[:1].clone() for feed in feeds)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing, and of the exporter that needs no onnxscript
        randomise(module)
        set_statistics(module, feeds)
        given = module(*one)
        count = 1 if isinstance(given, torch.Tensor) else len(given)
        names = ["y"] if count == 1 else [f"y{at}" for at in range(count)]
        file = io.BytesIO()
        named = {"input_names": list(inputs), "output_names": names}
        torch.onnx.export(module, one, file, opset_version=OPSET, dynamo=False, **named)
    return onnx.load_from_string(file.getvalue())


def randomise(module: torch.nn.Module) -> None:
    """Draw weights with the variance of 1 / fan-in, and replace constant parameters by random ones.

    Initial values are often zeros or ones (layer scales, shifts, tables of relative positions): an engine could
    remove such a layer. Biases get a standard deviation of 0.1, scales are uniform. A layer's attribute ``gain``
    multiplies its weights. Shifts of batch normalisations have a mean of one, so that a ReLU after them passes most
    values: where it passes half of them, each layer amplifies rounding errors by 1.2 on average, and a deep network
    by thousands.
    """
    import torch

    least, most = _SPREAD
    for name, parameter in module.named_parameters():
        last = name.rpartition(".")[2]
        if parameter.ndim == 1 or parameter.min() == parameter.max():
            scales = parameter.ndim == 1 and not any(word in last for word in ("bias", "beta", "token"))
            scales = scales or any(word in last for word in ("gamma", "scale", "weight"))
            torch.nn.init.uniform_(parameter, least, most) if scales else torch.nn.init.normal_(parameter, std=_BIAS)
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.affine:
            torch.nn.init.normal_(layer.bias, 1.0, _BIAS)
        transposed = isinstance(layer, torch.nn.ConvTranspose1d | torch.nn.ConvTranspose2d | torch.nn.ConvTranspose3d)
        if transposed or isinstance(layer, torch.nn.Linear | torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d):
            shape = layer.weight.shape
            taps = math.prod(shape[2:])
            fan_in = shape[1] * taps
            if transposed:
                fan_in = shape[0] // layer.groups * max(1, taps // math.prod(layer.stride))
            torch.nn.init.normal_(layer.weight, std=getattr(layer, "gain", 1.0) * fan_in**-0.5)


def set_statistics(module: torch.nn.Module, feeds: list[torch.Tensor]) -> None:
    """Run the module once with batch normalisations in training mode: they get the statistics of `feeds`.

    One that sees few pixels keeps its initial statistics. Pooled features of random images hardly differ, so its
    variance would be tiny, and it would amplify rounding errors.
    """
    import torch

    def choose(norm: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        norm.train(given[0].numel() // given[0].shape[1] >= _MIN_PIXELS)

    norms = [each for each in module.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]
    hooks = [norm.register_forward_pre_hook(choose) for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        module(*feeds)
    for hook in hooks:
        hook.remove()
    module.eval()


def _picking(module: torch.nn.Module, pick: Pick | None) -> torch.nn.Module:
    """Wrap a module to return only selected tensors."""
    import torch

    class Picking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: torch.Tensor) -> Any:
            found = self.module(*inputs)
            return found if pick is None else pick(found)

    return module if pick is None else Picking()
