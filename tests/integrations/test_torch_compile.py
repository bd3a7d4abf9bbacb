"""`torch.compile(backend="cpuconv")` against eager execution: weights, aliases, sizes, threads, graph breaks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from cpuconv.errors import CpuconvWarning  # noqa: E402
from cpuconv.integrations.torch_compile import backend  # noqa: E402
from support.torch_backend import NAME, Function, Net, compiled, compiled_parts, fresh, images, same  # noqa: E402


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with fresh():
        yield


@pytest.fixture
def parts() -> Iterator[list[Any]]:
    """Models that are compiled during a test."""
    with compiled_parts() as made:
        yield made


def test_entry_point() -> None:
    """The name in the package's metadata is that of the backend."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    stated = f'[project.entry-points.torch_dynamo_backends]\n{NAME} = "{backend.__name__}:compile_graph"\n'
    assert stated in text


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_batches_and_sizes(dynamic: bool | None, parts: list[Any]) -> None:
    """Batches 1 to 3, odd sizes, channels_last: one graph with open sizes serves all."""
    net = Net()
    fast = compiled(net, dynamic=dynamic, fullgraph=True)
    for sizes in ((1, 3, 8, 8), (2, 3, 8, 8), (3, 3, 8, 8), (2, 3, 9, 11))[: 3 if dynamic is False else 4]:
        for order in (torch.contiguous_format, torch.channels_last):
            x = images(*sizes).to(memory_format=order)
            same(fast(x), net(x))
    assert parts


def test_channels_last_in_and_out() -> None:
    """Images in channels_last are not copied, and results are in channels_last, too."""
    net = Function(lambda x, y: y)
    fast = compiled(net.to(memory_format=torch.channels_last))
    x = images().to(memory_format=torch.channels_last)
    same(fast(x), net(x))
    assert fast(x).is_contiguous(memory_format=torch.channels_last)
    turned = images(2, 8, 9, 3).permute(0, 3, 1, 2)[..., ::2]  # with gaps: copied
    same(fast(turned), net(turned))


def test_instances_share_code(parts: list[Any]) -> None:
    """Two instances of a class, called in turns: weights of each are packed once."""
    nets, x = [Net(), Net()], images()
    fast = [compiled(net) for net in nets]
    for _ in range(3):
        for net, each in zip(nets, fast, strict=True):
            same(each(x), net(x))
    assert len(parts) == 2


def test_compiled_twice() -> None:
    """A module that is compiled twice, also with another precision."""
    net, x = Net(), images()
    same(compiled(net)(x), net(x))
    same(compiled(net, options={"threads": 1, "accuracy": "exact"})(x), net(x))
    rough = compiled(Net().requires_grad_(False), options={"precision": "bfloat16"})
    assert rough(x).shape == (2, 5)


def test_results_are_fresh() -> None:
    """Writes into results and inputs after a call change nothing else."""
    net, x = Net(), images()
    fast = compiled(net)
    first = fast(x)
    kept = first.clone()
    second = fast(x)
    second.zero_()
    x.zero_()
    assert torch.equal(first, kept)
    same(fast(x), net(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_outputs(dynamic: bool) -> None:
    """None, nested outputs, inputs as outputs, views of inputs and of results, sizes, the same result twice."""

    def outputs(x: Any, y: Any) -> Any:
        return {
            "none": None,
            "pair": (y, [y[:, 0], y.flatten(1)]),
            "x": x,
            "view": x[:, 1:],
            "n": y.shape[0],
            "twice": (y, y),
        }

    net, x = Function(outputs), images()
    results = compiled(net, dynamic=dynamic)(x)
    same(results, net(x))
    assert results["x"] is x
    results["view"].fill_(5)
    assert (x[:, 1:] == 5).all()
    results["pair"][0].fill_(7)
    assert (
        (results["pair"][1][0] == 7).all() and (results["pair"][1][1] == 7).all() and (results["twice"][1] == 7).all()
    )


def test_in_place() -> None:
    """Chains of writes to views of a result, and writes to the input, are those of eager execution."""

    def chained(x: Any, y: Any) -> Any:
        y[:, 0].add_(1).mul_(x[:, 0])
        y[:, 1:3] = 2
        y.view(-1)[::5] *= 3
        return F.relu_(y), y.transpose(1, 2)

    def into_input(x: Any, y: Any) -> Any:
        x += 1
        x[:, 0].mul_(2)
        return y + x.sum()

    def returned(x: Any, y: Any) -> Any:
        return x.mul_(2), y

    for function in (chained, into_input, returned):
        net, x = Function(function), images()
        fast = compiled(net)
        for _ in range(2):
            a, b = x.clone(), x.clone()
            same(fast(a), net(b))
            same(a, b)


def test_operators_without_adapters() -> None:
    """Operators that have no adapter stay with PyTorch, between parts of ours; one warning names them."""
    net, x = Function(lambda x, y: F.conv2d(torch.digamma(y.abs() + 1), torch.ones(2, 4, 1, 1)).cumprod(1)), images()
    fast = compiled(net, dynamic=True)
    with pytest.warns(CpuconvWarning, match=r"stay with PyTorch: aten\.cumprod.*aten\.digamma"):
        same(fast(x), net(x))


def test_sizes_between_parts() -> None:
    """A part gives a size that depends on elements to an operator that stays with PyTorch."""

    def chosen(x: Any, y: Any) -> Any:
        some = (y[:, 0].flatten() > 0).nonzero()[:, 0]
        rows = y.permute(0, 2, 3, 1).reshape(-1, 4)[some]
        kept = torch.digamma(rows.new_ones(some.shape[0] * 2) + 1)
        return rows @ torch.ones(4, 3), kept

    net, x = Function(chosen), images()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = compiled(net)
        with pytest.warns(CpuconvWarning, match="stay with PyTorch"):
            same(fast(x), net(x))
        same(fast(x + 1), net(x + 1))


def test_gradients_and_training() -> None:
    """With gradients, and in training mode, everything is PyTorch's, with a warning."""
    net, x = Net(), images()
    fast = compiled(net)
    with torch.enable_grad():
        with pytest.warns(CpuconvWarning, match="gradients are enabled"):
            y = fast(x)
        y.sum().backward()
        assert net.conv.weight.grad is not None
        fast(x)  # without a second warning
        frozen = Net().requires_grad_(False)
        assert not compiled(frozen)(x).requires_grad
    same(fast(x), net(x))
    trained = Net()
    again = torch.compile(trained.train(), backend=NAME)
    before = trained.norm.running_mean.clone()
    with pytest.warns(CpuconvWarning, match=r"training mode: call module\.eval"):
        again(x)
    assert not torch.equal(trained.norm.running_mean, before)
    trained.eval()
    same(again(x), trained(x))


def test_graph_breaks() -> None:
    """A program that Dynamo divides: one warning with the reason."""

    def broken(x: Any, y: Any) -> Any:
        z = y * 2
        torch._dynamo.graph_break()
        return F.conv2d(z, torch.ones(2, 4, 1, 1))

    net, x = Function(broken), images()
    with pytest.warns(CpuconvWarning, match="graph break"):
        same(compiled(net)(x), net(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(dtype: Any) -> None:
    """Modules of other types; float64 stays with PyTorch."""
    net, x = Net().to(dtype), images().to(dtype)
    y, expected = compiled(net)(x), net(x)
    assert y.dtype == dtype
    assert torch.allclose(y.float(), expected.float(), rtol=0.05, atol=0.05)


def test_autocast() -> None:
    """Types of results under autocast are those of eager execution."""
    net, x = Net(), images()
    fast = compiled(net)
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = fast(x), net(x)
    assert y.dtype == expected.dtype
    assert torch.allclose(y.float(), expected.float(), rtol=0.05, atol=0.05)


def test_threads() -> None:
    """Concurrent calls, with two sets of weights that changed before."""
    nets, x = [Net(), Net()], images()
    fast = [compiled(net) for net in nets]
    failed: list[BaseException] = []

    def call(at: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    same(fast[at % 2](x), expected[at % 2])
        except BaseException as error:  # noqa: BLE001, reported by the main thread
            failed.append(error)

    for net, each in zip(nets, fast, strict=True):
        each(x)
        net.conv.weight.mul_(2)
    expected = [net(x) for net in nets]
    threads = [threading.Thread(target=call, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_saved(tmp_path: Path) -> None:
    """A function that `aot_compile` saved runs again, with other weights of the same module, too."""
    pytest.importorskip("torch._dynamo.aot_compile_types")  # torch 2.9
    net, x = Net().eval(), images()
    with torch._dynamo.config.patch(enable_aot_compile=True):  # the default from torch 2.12 on
        function = torch.compile(net, fullgraph=True, backend=NAME).forward.aot_compile(((x,), {}))
    same(function(net, x), net(x))
    path = str(tmp_path / "net")
    function.save_compiled_function(path)
    with open(path, "rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    same(loaded(net, x), net(x))
    net.conv.weight.mul_(2)
    same(loaded(net, x), net(x))


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="torch before 2.13")
def test_default_backend(parts: list[Any]) -> None:
    """The backend of a whole program; `isolate_recompiles` gives each call of `torch.compile` its own graphs."""
    net, x = Net().eval(), images()
    torch.compiler.set_default_backend(NAME)
    try:
        fast = [torch.compile(net, isolate_recompiles=True, recompile_limit=1, dynamic=False) for _ in range(2)]
        for each, size in zip(fast, (8, 9), strict=True):
            same(each(x[..., :size]), net(x[..., :size]))
    finally:
        torch.compiler.set_default_backend("inductor")
    assert len(parts) == 2


def test_options() -> None:
    """Unknown options are refused."""
    with pytest.raises(Exception, match="accuracy, idle_bytes, precision"):
        compiled(Net(), options={"speed": 1})(images())


def test_without_products() -> None:
    """Graphs without convolutions and products stay with PyTorch, silently."""
    assert compiled(lambda x: x.relu() * 2)(images()).shape == (2, 3, 8, 9)
