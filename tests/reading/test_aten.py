"""Adapters of ATen operators: each against eager execution, with fixed and with open sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from cpuconv.network.sizes.specialise import specialise  # noqa: E402
from cpuconv.problem.arrays import writable_view  # noqa: E402
from cpuconv.reading.aten.exported import read_module  # noqa: E402

torch.manual_seed(5)
BOUND = 3e-6


def plane(*sizes: int) -> Any:
    return torch.randn(*(sizes or (2, 4, 9, 7)))


def rows(*sizes: int) -> Any:
    return torch.randn(*(sizes or (2, 5, 8)))


def index(high: int, *sizes: int) -> Any:
    return torch.randint(-high, high, sizes)


class Of(nn.Module):
    """A module of a function."""

    def __init__(self, function: Callable[..., Any], *layers: Any) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def compared(module: Any, graph: Any, args: tuple[Any, ...]) -> None:
    """Compare a graph with the module that it was read from."""
    with torch.no_grad():
        expected = [each for each in pytree.tree_leaves(module(*[each.clone() for each in args])) if each is not None]
    feed = {name: writable_view(each.contiguous(), name) for name, each in zip(graph.inputs, args, strict=True)}
    made = specialise(graph, {name: array.shape for name, array in feed.items()})
    for got, wanted in zip(interpret(made, feed).values(), expected, strict=True):
        array = np.asarray(wanted.float() if wanted.dtype == torch.bfloat16 else wanted)
        assert got.shape == array.shape
        assert np.dtype(got.dtype).name == str(wanted.dtype).removeprefix("torch.")
        got = got.astype(np.float64)
        finite = np.isfinite(array)
        np.testing.assert_array_equal(got[~finite], array[~finite])
        error = np.abs(got[finite] - array[finite]).max(initial=0) / max(1, np.abs(array[finite]).max(initial=0))
        assert error < (1e-2 if wanted.dtype in (torch.bfloat16, torch.float16) else BOUND)


def run(module: Any, *args: Any, batches: tuple[int, ...] = ()) -> None:
    """Compare a module read with fixed sizes, and with an open batch at several sizes."""
    module = (module if isinstance(module, nn.Module) else Of(module)).eval()
    compared(module, read_module(module, args), args)
    if not batches:
        return
    shapes = tuple({0: torch.export.Dim("batch", min=1, max=64)} for _ in args)
    opened = read_module(module, args, dynamic_shapes=(shapes,) if isinstance(module, Of) else shapes)
    for batch in batches:
        compared(module, opened, tuple(torch.cat([each] * batch)[:batch] for each in args))


_PLAIN = """abs neg exp sqrt rsqrt log log2 log10 log1p expm1 erf sin cos floor ceil round trunc sign reciprocal relu
sigmoid tanh isnan square positive"""
UNARY: dict[str, Callable[..., Any]] = {name: getattr(torch, name) for name in _PLAIN.split()} | {
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "softplus steep": lambda x: F.softplus(10 * x, 3.0, 5.0),
    "leaky": lambda x: F.leaky_relu(x, 0.2),
    "logsigmoid": F.logsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "glu": lambda x: F.glu(x, 1),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp low": lambda x: x.clamp(min=0.1),
    "clamp_max": lambda x: x.clamp_max(0.1),
    "clamp tensor": lambda x: x.clamp(torch.tensor(-0.5), x.mean()),
    "nan_to_num": lambda x: (x / 0).nan_to_num(0.5),
    "pow": lambda x: (x**2, x.abs() ** 0.5, x**3, x.abs() ** 1.7, 2.0**x),
    "float": lambda x: x.to(torch.int32).float(),
    "int": lambda x: (x * 10).to(torch.int64) // 3,
    "int trunc": lambda x: torch.div((x * 10).int(), 3, rounding_mode="trunc"),
    "remainder": lambda x: (x % 0.7, (x * 10).int() % 3, torch.fmod(x, 0.3)),
    "div": lambda x: (x * 10).int() / 4,
    "div floor": lambda x: (torch.div(x, 0.3, rounding_mode="floor"), torch.div(x, 0.3, rounding_mode="trunc")),
    "compare": lambda x: (x > 0, x >= 0.5, x < 0, x <= 0, x == 0, x != 0, x > x.mean()),
    "logic": lambda x: ((x > 0) & (x < 1), (x > 0) | (x < -1), ~(x > 0), torch.logical_not(x), (x > 0) ^ (x > 1)),
    "mask": lambda x: (x.masked_fill(x > 0, -1.0), torch.where(x > 0, x, 0.0), torch.where(x > 0, 1, 0), (x > 0) * x),
    "bool": lambda x: ((x > 0) + (x > 1), (x > 0) * (x > 1)),
    "rsub": lambda x: (1 - x, torch.add(x, x, alpha=0.5)),
    "like": lambda x: (
        torch.zeros_like(x),
        torch.full_like(x, 2.5),
        x.new_ones(3),
        torch.ones_like(x, dtype=torch.int32),
    ),
    "addcmul": lambda x: (torch.addcmul(x, x, x, value=0.5), torch.lerp(x, x * 2, 0.3)),
    "half": lambda x: (x.bfloat16() * 2, x.half() + 1, (x.bfloat16() + 1).float()),
}


@pytest.mark.parametrize("name", UNARY)
def test_elementwise(name: str) -> None:
    """Elementwise operators, at numbers of both signs or their logarithm's domain."""
    x = plane()
    run(UNARY[name], x.abs() if name in ("sqrt", "rsqrt", "log", "log2", "log10", "log1p") else x, batches=(1, 3))


MOVED = {
    "view": lambda x: (
        x.view(x.shape[0], -1),
        x.reshape(-1, 7),
        x.flatten(1),
        x.flatten(2),
        x.flatten(),
        x.flatten(1, 2),
    ),
    "permute": lambda x: (x.permute(0, 2, 3, 1), x.transpose(1, -1), x.movedim(1, -1), x.mT, x[0, 0].t()),
    "squeeze": lambda x: (
        x[:, :1].squeeze(1),
        x[:, :1].squeeze(),
        x.unsqueeze(-1),
        x.squeeze(2),
        x[:, :1, :1].squeeze((1, 2)),
    ),
    "expand": lambda x: (x[:, :1].expand(-1, 4, -1, -1), x[0].expand(3, -1, -1, -1), x[:, :1].expand_as(x)),
    "repeat": lambda x: (x.repeat(1, 2, 1, 1), x.repeat(2, 1, 1, 1, 1), x.repeat_interleave(2, 1), x.tile(2)),
    "join": lambda x: (torch.cat([x, x[:, :2]], 1), torch.stack([x, x], -1), torch.cat([x, x.int()], -1)),
    "split": lambda x: (*x.split(3, 1), *x.split([1, 3], 1), *x.chunk(3, 2), *x.unbind(1)),
    "tensor_split": lambda x: x.tensor_split((1, 3), 1),
    "slice": lambda x: (x[:, 1:3], x[..., -2:], x[:, :, ::2], x[:, -1], x.narrow(2, 1, 4), x.select(1, -2), x[:, :100]),
    "pad": lambda x: (
        F.pad(x, (1, 2, 0, 3)),
        F.pad(x, (1, 2), value=0.5),
        F.pad(x, (-1, 1)),
        F.pad(x, (1, 2, 3, 1), "reflect"),
        F.pad(x, (1, 2, 3, 1), "replicate"),
        F.pad(x, (1, 2, 3, 1), "circular"),
    ),
    "roll": lambda x: (x.roll(2, 1), x.roll((-1, 3), (2, 3)), x.flip(1), x.flip((2, -1))),
    "shuffle": lambda x: (F.pixel_shuffle(x, 2), F.channel_shuffle(x, 2), F.pixel_unshuffle(x[:, :, :8, :6], 2)),
    "unfold": lambda x: (x.unfold(2, 3, 2), F.unfold(x, (3, 2), padding=(1, 0), stride=2, dilation=(1, 2))),
    "unflatten": lambda x: (x.unflatten(1, (2, 2)), x.unflatten(1, (2, -1))),
    "index": lambda x: (
        x[:, torch.tensor([2, 0, -1])],
        x[:, :, torch.tensor([1, 2])[:, None], torch.tensor([0, 3])],
        x[:, torch.tensor([1, 2]), :, torch.tensor([0, 3])],
        x.index_select(1, torch.tensor([1, 1])),
    ),
    "index input": lambda x: (x[torch.zeros(2, dtype=torch.long)], x[torch.tensor([0]), torch.tensor([2])]),
    "reduce": lambda x: (
        x.sum(),
        x.mean((2, 3)),
        x.sum(1, True),
        x.amax((1, 2)),
        x.max(),
        x.prod(3),
        x.logsumexp(1),
        x.amin(-1),
    ),
    "extreme": lambda x: (*x.max(1), *x.min(-1, True), x.argmax(1), x.argmin(), torch.maximum(x, -x), torch.max(x, -x)),
    "truth": lambda x: ((x > 0).any(), (x > -9).all(1), (x > 1).any(-1, True), (x > 0).sum()),
    "spread": lambda x: (x.var((2, 3)), x.std(1), x.var(1, unbiased=False), *torch.var_mean(x, 1, keepdim=True)),
    "norm": lambda x: (
        x.norm(),
        x.norm(dim=1),
        x.norm(1, 2),
        F.normalize(x, dim=1),
        torch.linalg.vector_norm(x, float("inf"), 1),
    ),
    "order": lambda x: (*x.topk(3, 1), *x.sort(1), *x.sort(-1, descending=True), *torch.topk(x, 2, 2, largest=False)),
    "sums": lambda x: (x.cumsum(1), x.softmax(1), x.log_softmax(-1), x.softmax(1, dtype=torch.float32)),
    "made": lambda x: (
        torch.arange(x.shape[0]) + x.sum(),
        torch.zeros(x.shape[0], 3),
        torch.linspace(0, 1, 5) * x.mean(),
        torch.full((x.shape[0],), 2.0),
        torch.eye(7) + x[..., :7, :],
        *torch.meshgrid(x[0, 0, 0], torch.arange(3.0), indexing="ij"),
    ),
    "triangle": lambda x: (x.tril(), x.triu(1)),
    "one hot": lambda x: (F.one_hot((x[:, 0, 0] > 0).long(), 3), F.one_hot((x > 0).long(), 2).float()),
    "einsum": lambda x: (torch.einsum("nchw,ncjw->nhj", x, x), torch.einsum("bchw->bhwc", x)),
    "products": lambda x: (
        x @ x.mT,
        torch.bmm(x[:, 0], x[:, 1].mT),
        x[:, 0] @ torch.ones(7),
        x.flatten(1) @ torch.ones(252, 3),
        torch.baddbmm(x[:, 0, :, :1], x[:, 0], x[:, 1].mT, beta=0.5, alpha=2),
        torch.addmm(torch.ones(7), x[0, 0], torch.ones(7, 7)),
    ),
    "sizes": lambda x: (
        x.new_zeros(x.shape[0], x.shape[1] * 2),
        x.view(x.shape[0] * 2, 2, -1),
        x.new_zeros(x.shape[0] // 2 + 1),
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_moved(name: str) -> None:
    """Operators that move, join, reduce or make elements; batches are open where PyTorch can export them so."""
    x = plane()
    fixed = ("permute", "index input", "roll", "unfold", "shuffle", "squeeze", "triangle", "products")
    run(MOVED[name], x, batches=() if name in fixed else (2, 5))


def test_written_in_place() -> None:
    """Chains of in-place operators on views reach their bases and other views, in order."""

    def chained(x: Any) -> Any:
        y = x * 2
        left, whole = y[:, :2], y.view(-1)
        left[:, 1].add_(10).mul_(0.5)
        whole.sub_(1)
        y.transpose(1, 2)[:, 3] = 7
        z = left.clone()
        y.relu_()
        y[..., ::2] *= 3
        return y, left, whole, z, y.zero_()[0]

    def masked(x: Any) -> Any:
        mask = x.new_zeros((9, 7))
        for count, rows in enumerate((slice(0, 4), slice(4, 9))):
            mask[rows, :3] = count
        return x + mask

    def put(x: Any) -> Any:
        y = x.clone()
        y[torch.tensor([0, 1]), torch.tensor([2, 3])] = 0.5
        y[:, torch.tensor([0])] += 1
        y[:, torch.tensor([1, 2]), :, torch.tensor([[0], [3]])] = 2
        y[:, torch.tensor([3, 1]), torch.tensor([0, 4])] = x[:, :2, 0]
        y[y > 1] = 1
        return y

    def parts(x: Any) -> Any:
        y = x * 2
        first, second = y.chunk(2, 1)
        first.add_(second)
        values, places = y.max(1)
        values.mul_(2)
        return y, values, places

    run(chained, plane())
    run(parts, plane())
    run(masked, plane(), batches=(1, 4))
    run(lambda x: F.relu(x + 1, inplace=True), plane(), batches=(1, 4))
    run(put, plane())


def test_scattered() -> None:
    """Operators with indices that are inputs."""
    x, at = plane(3, 5, 6), index(1, 3, 5, 6).abs() % 5
    run(lambda x, at: (x.gather(1, at), x.scatter(1, at, x), x.scatter(1, at, 0.5), x.scatter_add(1, at, x)), x, at)
    table = nn.Embedding(11, 6)
    run(table, torch.randint(0, 11, (2, 3)), batches=())
    run(lambda x, at: (x[at], x.index_select(0, at), x[:, at]), x, torch.tensor([0, 2, 1, 1]))
    run(lambda x, a, b: (x[a, b], x[:, a, b], x[a, :, b]), x, torch.tensor([0, 2, -1]), torch.tensor([[1], [2]]))


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


def test_refused() -> None:
    """What cannot be read is named, all of it."""
    with pytest.raises(SourceError, match=r"aten\.digamma.*aten\.erfinv"):
        read_module(Of(lambda x: torch.digamma(x) + torch.erfinv(x)), (plane(),))
    with pytest.raises(SourceError, match="training mode do: call module.eval"):
        read_module(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).train(), (plane(),))
    with pytest.raises(SourceError, match="writes to"):
        read_module(Of(lambda x: x.add_(1) * 2), (plane(),))
    with pytest.raises(SourceError, match="cannot be exported"):
        read_module(Of(lambda x: x * 2 if x.sum() > 0 else x), (plane(),))
    with pytest.raises(SourceError, match="adapter"):
        run(lambda x: torch.complex(x, x).abs(), plane())
