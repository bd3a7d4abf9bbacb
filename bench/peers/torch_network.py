"""Networks in PyTorch: eager, channels_last, and frozen by TorchScript with oneDNN's fusions; attention of
`bench.chains` also as `scaled_dot_product_attention`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.networks.vision import torchvision
from bench.peers.base import Form

_ATTENTION = re.compile(r"Attention (\d+)x(\d+)(?: to (\d+))?, (\d+) heads of (\d+)")


def forms(path: Path, feed: Mapping[str, np.ndarray], precision: str) -> list[Form]:
    """Return the forms of an ONNX file for inputs like `feed`, without those that PyTorch does not support.

    Raises
    ------
    ModuleNotFoundError
        If onnx2torch is not installed.
    """
    import torch

    torchvision()  # onnx2torch imports it
    import onnx2torch

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    module = onnx2torch.convert(str(path)).eval().to(dtype)
    inputs = [torch.from_numpy(array).to(dtype) for array in feed.values()]
    last = [each.contiguous(memory_format=torch.channels_last) if each.ndim == 4 else each for each in inputs]
    found = [_form("eager", module, inputs)]
    if sizes := _ATTENTION.fullmatch(path.stem):
        found.append(_form("sdpa", _attention(path, dtype, *(int(size or 0) for size in sizes.groups())), inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about deprecated TorchScript and traced constants
        for make in (lambda: _frozen(module, inputs), lambda: _form("channels_last", _to_last(module), last)):
            try:
                made = make()
                made.run()
                found.append(made)
            except Exception:  # an operator that cannot be traced, or a view with another axis order
                continue
    return found


def _form(name: str, module: Callable[..., Any], inputs: list[Any]) -> Form:
    kept: dict[str, Any] = {}

    def run() -> None:
        kept["y"] = module(*inputs)

    def output() -> list[np.ndarray]:
        outputs = kept["y"] if isinstance(kept["y"], tuple | list) else [kept["y"]]
        return [each.float().contiguous().numpy() for each in outputs]

    return Form(name, run, output)


def _attention(path: Path, dtype: Any, batch: int, tokens: int, keys: int, heads: int, size: int) -> Callable[..., Any]:
    """PyTorch's fused attention of packed projections (batch, tokens, 3 · heads · size), with the mask of the file.

    With `keys`, it is of queries (batch, tokens, heads · size), and of keys and values packed in a second input.
    """
    import onnx
    import torch

    constants = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    mask = torch.from_numpy(constants["table"].copy()).to(dtype) if "table" in constants else None

    def heads_of(x: Any, count: int) -> Any:
        return x.view(batch, -1, count, heads, size).permute(2, 0, 3, 1, 4).unbind(0)

    def run(*x: Any) -> Any:
        q, k, v = (*heads_of(x[0], 1), *heads_of(x[1], 2)) if keys else heads_of(x[0], 3)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return y.transpose(1, 2).reshape(batch, tokens, heads * size)

    return run


def _to_last(module: Any) -> Any:
    import torch

    return module.to(memory_format=torch.channels_last)


def _frozen(module: Any, inputs: list[Any]) -> Form:
    import torch

    traced = torch.jit.freeze(torch.jit.trace(module, tuple(inputs), check_trace=False))
    made = _form("frozen", torch.jit.optimize_for_inference(traced), inputs)
    for _ in range(3):  # the executor specialises in the first runs
        made.run()
    return made
