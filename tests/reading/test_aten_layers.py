"""Layers as ATen operators, and torchvision's operators, against eager execution."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from cpuconv.network.interpret import interpret  # noqa: E402
from cpuconv.network.sizes.specialise import specialise  # noqa: E402
from cpuconv.reading.aten.exported import read_module  # noqa: E402
from support.graph.aten import Of, plane, run  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same numbers in every order of tests."""
    torch.manual_seed(5)


LAYERS = {
    "conv1d": (nn.Conv1d(4, 6, 3, 2, 1), (2, 4, 9)),
    "conv3d": (nn.Conv3d(4, 6, 3, padding=1), (1, 4, 5, 6, 7)),
    "conv2d": (nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2, bias=False), (2, 4, 9, 7)),
    "same": (nn.Conv2d(4, 6, 4, padding="same"), (2, 4, 9, 7)),
    "one image": (nn.Conv2d(4, 6, 3), (4, 9, 7)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2), (2, 4, 9, 7)),
    "transposed1d": (nn.ConvTranspose1d(4, 6, 3, 2, 1), (2, 4, 9)),
    "linear": (nn.Linear(8, 5), (2, 5, 8)),
    "linear1": (nn.Linear(8, 5, bias=False), (8,)),
    "bilinear up": (nn.Upsample(scale_factor=2, mode="bilinear"), (2, 4, 5, 3)),
    "nearest up": (nn.Upsample((7, 11)), (2, 4, 5, 3)),
    "nearest1d": (nn.Upsample(scale_factor=1.7), (2, 4, 5)),
    "aligned": (nn.Upsample((7, 1), mode="bilinear", align_corners=True), (2, 4, 5, 3)),
    "down": (nn.Upsample((2, 1), mode="bilinear"), (2, 4, 5, 3)),
    "exact": (nn.Upsample((7, 2), mode="nearest-exact"), (2, 4, 5, 3)),
    "cubic": (nn.Upsample(scale_factor=(1.5, 0.8), mode="bicubic"), (2, 4, 5, 6)),
    "trilinear": (nn.Upsample((4, 5, 6), mode="trilinear"), (1, 2, 3, 4, 5)),
    "linear up": (nn.Upsample(11, mode="linear"), (2, 4, 5)),
    "antialiased": (Of(lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True)), (1, 2, 9, 11)),
    "antialiased cubic": (Of(lambda x: F.interpolate(x, (3, 4), mode="bicubic", antialias=True)), (1, 2, 9, 11)),
    "area": (Of(lambda x: F.interpolate(x, (3, 4), mode="area")), (1, 2, 9, 11)),
    "batch norm": (nn.BatchNorm2d(4), (2, 4, 5, 3)),
    "batch norm 1d": (nn.BatchNorm1d(4, affine=False), (2, 4)),
    "group norm": (nn.GroupNorm(2, 4), (2, 4, 5, 3)),
    "instance norm": (nn.InstanceNorm2d(4), (2, 4, 5, 3)),
    "instance norm tracked": (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 5, 3)),
    "layer norm": (nn.LayerNorm((5, 3)), (2, 4, 5, 3)),
    "layer norm bare": (nn.LayerNorm(3, elementwise_affine=False), (2, 4, 5, 3)),
    "rms norm": (nn.RMSNorm(3, eps=1e-5), (2, 4, 5, 3)),
    "response": (nn.LocalResponseNorm(3), (2, 6, 5, 3)),
    "max pool": (nn.MaxPool2d(3, 2, 1), (2, 4, 9, 7)),
    "max ceil": (nn.MaxPool2d(3, 2, ceil_mode=True), (2, 4, 8, 6)),
    "max ceil pad": (nn.MaxPool2d(2, 3, 1, ceil_mode=True), (2, 4, 9, 8)),
    "max 1d": (nn.MaxPool1d(2), (4, 9)),
    "max dilated": (nn.MaxPool2d((2, 3), dilation=2), (2, 4, 9, 7)),
    "average": (nn.AvgPool2d(3, 2, 1), (2, 4, 9, 7)),
    "average apart": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 4, 9, 7)),
    "max indices": (nn.MaxPool2d(3, 2, 1, return_indices=True), (2, 4, 9, 7)),
    "average divided": (nn.AvgPool2d(3, 2, 1, divisor_override=5), (2, 4, 9, 7)),
    "average ceil": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), (2, 4, 8, 6)),
    "average 3d": (nn.AvgPool3d(2), (1, 2, 4, 5, 6)),
    "average ceil apart": (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (2, 4, 8, 6)),
    "adaptive": (nn.AdaptiveAvgPool2d(1), (2, 4, 5, 3)),
    "adaptive even": (nn.AdaptiveAvgPool2d((5, 2)), (2, 4, 10, 6)),
    "adaptive odd": (nn.AdaptiveAvgPool2d((3, 2)), (2, 4, 10, 7)),
    "adaptive max": (nn.AdaptiveMaxPool2d((3, 2)), (2, 4, 10, 7)),
    "adaptive up": (nn.AdaptiveAvgPool2d((7, 7)), (2, 4, 2, 3)),
    "adaptive 1d": (nn.AdaptiveAvgPool1d(1), (2, 4, 10)),
    "prelu": (nn.PReLU(4), (2, 4, 5, 3)),
    "prelu one": (nn.PReLU(), (2, 4)),
    "dropout": (nn.Dropout(), (2, 4)),
    "attention": (Of(lambda x: F.scaled_dot_product_attention(x, x * 2, x + 1)), (2, 3, 9, 4)),
    "causal": (Of(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.3)), (2, 3, 9, 4)),
    "masked": (
        Of(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x[..., :1] @ x[..., :1].mT > 0)),
        (2, 3, 9, 4),
    ),
    "masked rows": (
        Of(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.arange(9)[:, None] > torch.arange(9))),
        (2, 3, 9, 4),
    ),
    "grouped": (Of(lambda x: F.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True)), (2, 4, 9, 4)),
    "sampled": (Of(lambda x: F.grid_sample(x, x[:, :2, :3].permute(0, 2, 3, 1), align_corners=False)), (2, 4, 5, 6)),
    "sampled nearest": (
        Of(lambda x: F.grid_sample(x, x[:, :2, :3].permute(0, 2, 3, 1), "nearest", "border", True)),
        (2, 4, 5, 6),
    ),
    "affine": (Of(lambda x: F.affine_grid(x[:, 0, :2, :3], (2, 4, 3, 5), align_corners=False)), (2, 4, 5, 6)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3)), (2, 4, 9, 7)),
    "lstm": (nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True), (2, 4, 6)),
    "gru": (nn.GRU(6, 5, bias=False), (4, 2, 6)),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "heads": (Of(lambda x: F.softmax(x, -1)), (2, 3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    """Layers with random parameters and statistics."""
    module, sizes = LAYERS[name]
    for value in module.state_dict().values():
        if value.dtype == torch.float32:
            value.copy_(torch.rand_like(value) + 0.5 if "var" in name or "norm" in name else torch.randn_like(value))
    run(module, torch.randn(sizes))


def test_factors() -> None:
    """Interpolation by a factor: sizes and coordinates as in float64, where float32 would give 909 elements."""
    module, x = Of(lambda x: F.interpolate(x, scale_factor=1.3, mode="linear")), torch.randn(1, 1, 700)
    graph = read_module(module, (x,))
    (found,) = interpret(specialise(graph, {graph.inputs[0]: x.shape}), {graph.inputs[0]: x.numpy()}).values()
    np.testing.assert_allclose(found, module(x.double()), atol=2e-6)


def test_vision() -> None:
    """Operators of torchvision; regions are of several sizes, and partly outside of their image."""
    ops = pytest.importorskip("torchvision.ops")
    corners = torch.tensor([[0, 0, 4, 5], [1.3, 0.2, 5.9, 3.1], [-2, -1, 30, 9], [2, 2, 2, 2]])
    rois = torch.cat([torch.tensor([[0.0], [1], [1], [0]]), corners], 1)
    x = plane(2, 8, 9, 11)
    for aligned, ratio in ((True, 2), (False, -1)):
        run(lambda x, r, a=aligned, s=ratio: ops.roi_align(x, r, (3, 2), 0.7, s, a), x, rois)
    run(lambda x, r: (ops.ps_roi_align(x, r, 2, 0.7, 2), ops.roi_pool(x, r, 3, 0.7)), x, rois)
    run(ops.DeformConv2d(4, 6, 3, 2, 1, groups=2), plane(2, 4, 9, 7), plane(2, 36, 5, 4), torch.rand(2, 18, 5, 4))
    run(ops.DeformConv2d(4, 6, (1, 2), dilation=2, bias=False), plane(1, 4, 5, 6), plane(1, 4, 5, 4))
    run(lambda r, s: ops.nms(r, s, 0.1), corners, torch.tensor([0.1, 0.9, 0.5, 0.3]))
