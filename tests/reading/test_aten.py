"""Adapters of ATen operators: each against eager execution, with fixed and with open sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.reading.aten.exported import read_module  # noqa: E402
from support.graph.aten import Of, index, plane, run  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same numbers in every order of tests."""
    torch.manual_seed(5)


_PLAIN = """abs neg exp sqrt rsqrt log log2 log10 log1p expm1 erf sin cos floor ceil round trunc sign reciprocal relu
sigmoid tanh isnan square positive tan sinh cosh erfc exp2"""
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
    "decomposed": lambda x: (
        F.hardshrink(x),
        F.softshrink(x),
        F.tanhshrink(x),
        F.threshold(x, 0.1, -2),
        F.rrelu(x),
        x.logit(0.1),
        x.isinf(),
        *torch.std_mean(x, 1),
        *torch.aminmax(x, dim=1),
        F.cosine_similarity(x, x + 1),
        x.index_add(1, torch.tensor([0, 2]), x[:, :2]),
        F.smooth_l1_loss(x, x.exp()),
        x.diff(dim=1),
    ),
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
    "int": lambda x: ((x * 10).to(torch.int64) // 3, (x * 2).to(torch.int64).sinh()),
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
    "repeat": lambda x: (
        x.repeat(1, 2, 1, 1),
        x.repeat(2, 1, 1, 1, 1),
        x.repeat_interleave(2, 1),
        x.tile(2),
        x[0].repeat_interleave(2),
        x.repeat_interleave(torch.tensor([1, 0, 2, 1]), 1),
    ),
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
    "roll": lambda x: (x.roll(2, 1), x.roll(3), x.roll((-1, 3), (2, 3)), x.flip(1), x.flip((2, -1))),
    "shuffle": lambda x: (F.pixel_shuffle(x, 2), F.channel_shuffle(x, 2), F.pixel_unshuffle(x[:, :, :8, :6], 2)),
    "unfold": lambda x: (
        x.unfold(2, 3, 2),
        F.unfold(x, (3, 2), padding=(1, 0), stride=2, dilation=(1, 2)),
        F.unfold(x[0], 3),
        F.fold(F.unfold(x, 3, padding=1, stride=2), (9, 7), 3, padding=1, stride=2),
    ),
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
    "extreme": lambda x: (
        *x.max(1),
        *x.min(-1, True),
        x.argmax(1),
        x.argmin(),
        x.argmax(keepdim=True),
        torch.maximum(x, -x),
        torch.max(x, -x),
    ),
    "truth": lambda x: ((x > 0).any(), (x > -9).all(1), (x > 1).any(-1, True), (x > 0).sum()),
    "spread": lambda x: (x.var((2, 3)), x.std(1), x.var(1, unbiased=False), *torch.var_mean(x, 1, keepdim=True)),
    "norm": lambda x: (
        x.norm(),
        x.norm(dim=1),
        x.norm(1, 2),
        x.norm(3, 1),
        x.relu().norm(0, 1),
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
    run(lambda x, at: tuple(x.scatter_reduce(1, at, x, how) for how in ("sum", "prod", "amax", "amin")), x, at)
    table = nn.Embedding(11, 6)
    run(table, torch.randint(0, 11, (2, 3)), batches=())
    run(lambda x, at: (x[at], x.index_select(0, at), x[:, at]), x, torch.tensor([0, 2, 1, 1]))
    run(lambda x, a, b: (x[a, b], x[:, a, b], x[a, :, b]), x, torch.tensor([0, 2, -1]), torch.tensor([[1], [2]]))


def test_refused() -> None:
    """What cannot be read is named, all of it."""
    with pytest.raises(SourceError, match=r"aten\.digamma.*aten\.erfinv"):
        read_module(Of(lambda x: torch.digamma(x) + torch.erfinv(x)), (plane(),))
    with pytest.raises(SourceError, match="training mode do: call module.eval"):
        read_module(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).train(), (plane(),))
    with pytest.raises(SourceError, match="writes to"):
        read_module(Of(lambda x: x.add_(1) * 2), (plane(),))
    with pytest.raises(SourceError, match="cannot be exported.*splits such modules"):
        read_module(Of(lambda x: x * 2 if x.sum() > 0 else x), (plane(),))
    with pytest.raises(SourceError, match="adapter"):
        run(lambda x: torch.complex(x, x).abs(), plane())
    with pytest.raises(SourceError, match="with counts that are not constant"):
        run(lambda x: x.repeat_interleave(x.shape[0], 1), plane(), batches=(2,))
