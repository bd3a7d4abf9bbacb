"""Changed parameters behind `torch.compile(backend="cpuconv")` are noticed, whatever changed them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from cpuconv.errors import CpuconvWarning  # noqa: E402
from cpuconv.integrations.torch_compile import weights  # noqa: E402
from support.torch_backend import Net, compiled, fresh, images, same  # noqa: E402


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with fresh():
        yield


def test_changed_weights() -> None:
    """Every kind of update is noticed: in place, loaded, through `.data`, replaced."""
    net, other, x = Net(), Net(), images()
    fast = compiled(net)
    same(fast(x), net(x))
    for update in (
        lambda: net.conv.weight.mul_(1.5),
        lambda: net.linear.weight[0, 0].add_(5),
        lambda: net.load_state_dict(other.state_dict()),
        lambda: net.linear.weight.data.mul_(0.5),
        lambda: net.norm.running_var.data.fill_(3),
        lambda: net.conv.weight.data[0, 0, 0, 0].add_(2),
        lambda: setattr(net.conv.weight, "data", net.conv.weight.data.transpose(2, 3)),
        lambda: setattr(net.conv.weight, "data", torch.randn(8, 3, 3, 3)),
        lambda: setattr(net.linear, "weight", nn.Parameter(torch.randn(5, 8))),
        lambda: net.load_state_dict(Net().state_dict(), assign=True),
        lambda: nn.init.zeros_(net.linear.bias),
    ):
        update()
        same(fast(x), net(x))


def test_large_weights() -> None:
    """A single element that changed through `.data` is noticed after as many calls as there are parts to compare."""
    tensors = [torch.zeros(9000), torch.zeros(70)[1:], torch.zeros(3, dtype=torch.int8), torch.zeros(0)]
    for each, at in ((tensors[0], 8999), (tensors[1], 68), (tensors[2], 2)):
        snapshot = weights.Snapshot(tensors)
        assert all(snapshot.fits(tensors) for _ in range(9))
        each.data[at] = 1
        assert not all([snapshot.fits(tensors) for _ in range(4)])


def test_changed_numbers() -> None:
    """With open sizes, numbers of layers are inputs that Dynamo does not guard."""
    net, x = Net(), images()
    fast = compiled(net, dynamic=True)
    same(fast(x), net(x))
    net.norm.eps = 0.5
    same(fast(x), net(x))


def test_channels_last_weights() -> None:
    """Updates through `.data` of weights in channels_last are noticed."""
    net, x = Net().to(memory_format=torch.channels_last), images()
    fast = compiled(net)
    same(fast(x), net(x))
    net.conv.weight.data.mul_(2)
    same(fast(x), net(x))


def test_shared_weights() -> None:
    """Layers with the same parameters."""
    first, second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=2, dilation=2)
    second.weight = first.weight
    net = nn.Sequential(first, nn.ReLU(), second, first)
    fast, x = compiled(net), images()
    same(fast(x), net(x))
    first.weight.add_(1)
    same(fast(x), net(x))


def test_inference_mode() -> None:
    """Inference tensors have no versions."""
    with torch.inference_mode():
        net, x = Net().eval(), images()
        fast = compiled(net)
        same(fast(x), net(x))
        net.linear.weight.mul_(2)
        same(fast(x), net(x))


def test_tensors_of_tensors() -> None:
    """Weights of a subclass that has other tensors as parts stay with PyTorch."""
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    weight, x = torch.randn(3, 9), torch.randn(2, 9)
    held = two_tensor.TwoTensor(weight, weight.clone())
    with pytest.warns(CpuconvWarning, match="other tensors as parts"):
        result = compiled(lambda x: F.linear(x, held))(x)
    same(result.a, F.linear(x, weight))
