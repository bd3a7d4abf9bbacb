"""Emitter of graph nodes for adapters of ATen operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from cpuconv.graph.ir import Graph, Node, Value, trimmed
from cpuconv.graph.ops import TABLE
from cpuconv.names import Names
from cpuconv.problem.arrays import writable_view
from cpuconv.reading.aten.tensors import numpy_dtype

INT64 = np.dtype(np.int64)
END = np.iinfo(np.int64).max  # end of a slice that reaches to the end of an axis


class Unsupported(Exception):
    """An ATen operator, or a form of one, has no adapter."""


class Operand(str):
    """Name of a tensor in the graph, with the properties that tracing found.

    Attributes
    ----------
    meta : torch.Tensor
        The tensor itself if it is constant, else one without elements, of the same sizes and dtype.
    """

    meta: torch.Tensor

    @classmethod
    def of(cls, name: str, meta: torch.Tensor) -> Operand:
        """Name an operand of the sizes and dtype of `meta`."""
        made = cls(name)
        made.meta = meta
        return made

    @property
    def known(self) -> torch.Tensor | None:
        """The tensor, if it is constant."""
        return None if isinstance(self.meta, FakeTensor) else self.meta

    @property
    def rank(self) -> int:
        """Number of axes."""
        return self.meta.ndim

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""
        return self.meta.dtype

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Sizes; None for open ones."""
        return tuple(size if type(size) is int else None for size in self.meta.shape)

    def size(self, axis: int) -> int:
        """Size of an axis, which must not be open.

        Raises
        ------
        Unsupported
            It is open.
        """
        return fixed(self.sizes[axis])


class Size(str):
    """Name of an int64 scalar in the graph: an open size, or a number computed from open sizes."""


def fixed(size: Any) -> int:
    """Return a size, which must not be open.

    Raises
    ------
    Unsupported
        It is open.
    """
    if type(size) is not int:
        raise Unsupported("a size must be fixed")
    return size


class Emitter:
    """Emitter of the nodes of one graph.

    Attributes
    ----------
    out : Any
        Result of the current ATen operator as tracing found it: a tensor without elements, or a tuple of these.
    origin : str
        Name of the current ATen node.
    """

    def __init__(self, name: str) -> None:
        self.name, self.names = name, Names()
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, Value] = {}
        self.inputs: list[str] = []
        self.out: Any = None
        self.origin = ""
        self._known: dict[Any, str] = {}
        self._tensors: list[torch.Tensor] = []  # keeps addresses in `_known` from being reused

    def graph(self, outputs: Sequence[str]) -> Graph:
        """The graph of all nodes so far that outputs depend on."""
        made = Graph(tuple(self.inputs), tuple(outputs), tuple(self.nodes), self.constants, self.values, self.name)
        return made.live()

    def add(self, op: str, *inputs: Any, count: int = 1, **attributes: Any) -> Any:
        """Append a node; numbers and tensors among its inputs become constants, None is an absent input.

        Returns the name of its output, or with `count` a list of names.
        """
        names = ["" if each is None else str(self.operand(each)) for each in inputs]
        outputs = [self.names.fresh(f"{self.origin}.{op}") for _ in range(count)]
        stated = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(TABLE[op].node(trimmed(names), outputs, self.origin, **stated))
        return outputs[0] if count == 1 else outputs

    def operand(self, value: Any) -> str:
        """Name of a value: of a constant for tensors, arrays and numbers; integers become int64, others float32."""
        if isinstance(value, str):
            return value
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, (list, tuple)):
            return self.sizes(value)
        return self.number(value, np.dtype(np.bool_ if type(value) is bool else INT64 if type(value) is int else "f4"))

    def tensor(self, value: torch.Tensor) -> Operand:
        """Add a tensor's elements as a constant, which shares its memory; once for one tensor."""
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype) if value.numel() else id(value)
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = self.array(writable_view(value, "constant"))
            self._tensors.append(value)
        return Operand.of(name, value)

    def as_operand(self, value: Any) -> Any:
        """Add a tensor as a constant; return other values unchanged."""
        return self.tensor(value) if isinstance(value, torch.Tensor) else value

    def array(self, value: np.ndarray, hint: str = "") -> str:
        """Add an array as a constant."""
        if not value.flags.c_contiguous:
            value = np.ascontiguousarray(value).reshape(value.shape)
        value = value.view()
        value.flags.writeable = False
        name = self.names.fresh(hint or f"{self.origin}.constant")
        self.constants[name] = value
        return name

    def number(self, value: float, dtype: np.dtype) -> str:
        """Add a scalar constant, once for one number and type."""
        key = (repr(value), dtype.name)
        if key not in self._known:
            self._known[key] = self.array(np.asarray(value).astype(dtype), "number")
        return self._known[key]

    def integers(self, *values: int) -> str:
        """Add a 1-D int64 constant."""
        key = ("integers", values)
        if key not in self._known:
            self._known[key] = self.array(np.array(values, INT64), "sizes")
        return self._known[key]

    def sizes(self, values: Sequence[Any]) -> str:
        """1-D int64 tensor of sizes, of which some may be open."""
        if all(type(value) is int for value in values):
            return self.integers(*values)
        parts = [self.add("Unsqueeze", value, self.integers(0)) if isinstance(value, str) else self.integers(value)
                 for value in values]  # fmt: skip
        return self.add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def size_of(self, x: str, axis: int) -> Size:
        """Open size of an axis."""
        return Size(self.add("Gather", self.add("Shape", x), self.number(axis, INT64)))

    def shape(self, x: Operand) -> list[Any]:
        """Sizes of a tensor: numbers, or names of open ones."""
        return [self.size_of(x, axis) if size is None else size for axis, size in enumerate(x.sizes)]

    def dtype(self, dtype: torch.dtype) -> np.dtype:
        """NumPy's dtype of a torch dtype.

        Raises
        ------
        Unsupported
            Graphs do not have the type.
        """
        found = numpy_dtype(dtype)
        if found is None:
            raise Unsupported(f"type {dtype}")
        return found

    def cast(self, x: Any, dtype: torch.dtype) -> str:
        """Convert a tensor, a size or a number to a dtype."""
        to = self.dtype(dtype)
        if isinstance(x, (bool, int, float)):
            return self.number(x, to)
        if isinstance(x, Operand) and x.known is not None:
            return x if x.dtype == dtype else self.tensor(x.known.to(dtype))
        same = x.dtype == dtype if isinstance(x, Operand) else isinstance(x, Size) and to == INT64
        return x if same else self.add("Cast", x, to=to)

    def promoted(self, *operands: Any, dtype: torch.dtype | None = None) -> list[str]:
        """Convert operands to a common dtype: the given one, or that of PyTorch's type promotion."""
        dtype = dtype or self.common(*operands)
        return [self.cast(each, dtype) for each in operands]

    def common(self, *operands: Any) -> torch.dtype:
        """Dtype that PyTorch's type promotion gives."""
        plain = [each.meta if isinstance(each, Operand) else 1 if isinstance(each, Size) else each for each in operands]
        if len(plain) == 1:
            return plain[0].dtype if isinstance(plain[0], torch.Tensor) else torch.result_type(plain[0], plain[0])
        dtype = torch.result_type(*plain[:2])
        for each in plain[2:]:
            dtype = torch.result_type(torch.empty(1, dtype=dtype, device="meta"), each)
        return dtype


def batched(rank: int | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate an adapter of images so that one image without an axis of the batch gets one, and loses it again.

    `rank` is that of a batch; None: that of the weights, which are the first argument after the images.
    """

    def decorate(apply: Callable[..., Any]) -> Callable[..., Any]:
        def adapter(b: Emitter, x: Any, *args: Any, **attributes: Any) -> Any:
            wanted = rank or args[0].rank
            if x.rank == wanted:
                return apply(b, x, *args, **attributes)
            one = Operand.of(b.add("Unsqueeze", x, b.integers(0)), x.meta[None])
            return b.add("Squeeze", apply(b, one, *args, **attributes), b.integers(0))

        return adapter

    return decorate
