"""Small networks of usual architectures, by `from_torch` and by `torch.compile`, against eager execution.

`tests/torch_models.py` runs the networks of public packages.
"""

from __future__ import annotations

from typing import Any

import pytest

import cpuconv

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from support.torch_backend import NAME, register  # noqa: E402

BOUND = 1e-4


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU) -> nn.Module:
    norm = nn.BatchNorm2d(outputs)
    norm.running_mean.normal_()
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, 1, groups, False), norm, act())


class Residual(nn.Module):
    """ResNet: in-place activations, a sum, pooling, flattening."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = conv(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1)
        self.first, self.second, self.head = conv(16, 16), conv(16, 16, act=nn.Identity), nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = self.pool(self.stem(x))
        x = F.relu_(self.second(self.first(x)).add_(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Mobile(nn.Module):
    """MobileNetV3: depthwise convolutions, hard-swish, squeeze and excitation, channel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = conv(3, 24, 1, act=nn.Hardswish), conv(24, 24, 5, 2, 24, nn.Hardswish)
        self.squeeze, self.excite, self.project = nn.Conv2d(24, 8, 1), nn.Conv2d(8, 24, 1), conv(24, 16, 1, act=nn.SiLU)

    def forward(self, x: Any) -> Any:
        x = self.depthwise(self.expand(x))
        x = x * F.hardsigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        a, b = self.project(x).chunk(2, 1)
        x = torch.cat([a, b * 2], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Transformer(nn.Module):
    """Vision transformer: a token and positions, heads from one projection, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.randn(1, 1, 32))
        self.places = nn.Parameter(torch.randn(1, 17, 32))
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=True)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        q, k, v = self.qkv(self.norm(x)).reshape(x.shape[0], -1, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.layer(x)[:, 0]


class Windows(nn.Module):
    """Swin: shifted windows, a mask that is written part by part, a table of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.qkv, self.table = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 48), nn.Parameter(torch.randn(49, 2))
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None] + 3
        self.register_buffer("index", apart[0] * 7 + apart[1])

    def forward(self, x: Any) -> Any:
        x = self.patches(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        x = (
            torch.roll(x, (-2, -2), (1, 2))
            .view(n, h // 4, 4, w // 4, 4, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(-1, 16, c)
        )
        mask = x.new_zeros((h, w))
        for number, rows in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
            mask[rows] += number
        mask = mask.view(h // 4, 4, w // 4, 4).permute(0, 2, 1, 3).reshape(-1, 16)
        apart = mask.unsqueeze(1) - mask.unsqueeze(2)
        apart = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
        q, k, v = self.qkv(x).reshape(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = q * 8**-0.5 @ k.transpose(-2, -1) + self.table[self.index.view(-1)].view(16, 16, -1).permute(2, 0, 1)
        scores = scores.view(n, -1, 2, 16, 16) + apart.unsqueeze(1).unsqueeze(0)
        x = (scores.view(-1, 2, 16, 16).softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c)
        x = x.view(n, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return torch.roll(x, (2, 2), (1, 2))


class Pyramid(nn.Module):
    """U-Net and a detector's head: upsampling, joins, boxes from distributions, anchors from sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = conv(3, 16), conv(16, 32, 3, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.join, self.boxes, self.scores = conv(48, 32, 1), nn.Conv2d(32, 32, 1), nn.Conv2d(32, 5, 1)

    def forward(self, x: Any) -> dict[str, Any]:
        first = self.down(x)
        deep = self.deep(F.max_pool2d(first, 5, 1, 2))
        x = torch.cat([first + self.up(deep), F.interpolate(deep, scale_factor=2, mode="bilinear")], 1)
        x = self.join(x)
        n, _, h, w = x.shape
        apart = self.boxes(x).view(n, 4, 8, h * w).softmax(2).mul(torch.arange(8.0).view(1, 1, 8, 1)).sum(2)
        places = torch.stack(torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")).flatten(1)
        least, most = apart.split(2, 1)
        scores = self.scores(x).flatten(2).sigmoid()
        return {"boxes": torch.cat([places - least, places + most], 1), "best": scores.amax(1).topk(7, 1).values}


NETWORKS = (Residual, Mobile, Transformer, Windows, Pyramid)


@pytest.mark.parametrize("make", NETWORKS)
def test_networks(make: type[nn.Module]) -> None:
    """An open batch by `from_torch`, and batches 1 to 3 by `torch.compile`."""
    register()
    torch._dynamo.reset()
    torch.manual_seed(1)
    net = make().eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    model = cpuconv.from_torch(net, (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: batch},), threads=2)
    fast = torch.compile(net, backend=NAME, fullgraph=True)
    for count in (2, 1, 3):
        x = torch.randn(count, 3, 32, 32)
        with torch.no_grad():
            found, expected = fast(x), net(x)
        results = model.run({model.inputs[0].name: x.numpy()})
        if isinstance(expected, torch.Tensor):
            found, expected = {"output": found}, {"output": expected}
        for name, wanted in expected.items():
            for got in (found[name], torch.from_numpy(results[name])):
                assert got.shape == wanted.shape
                assert (got - wanted).abs().max() <= BOUND * wanted.abs().max()
