"""ConvProblem: all parameters of a convolution that its time depends on, except for the machine."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import layouts
from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.elements import S32
from cpuconv.errors import ArgumentError, must
from cpuconv.problem import activation as activations
from cpuconv.problem.integers import integer, integers
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.symbolic.sizes import greatest

MAX_PADDING = 1 << 24  # rows or columns per side: some solvers copy the padded input
_SIZES = re.compile(r"([a-z]+)(\d+)")
_NAMES = ("g", "mb", "ic", "ih", "iw", "oc", "oh", "ow", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw")
_NEEDED = ("ic", "ih", "oc", "kh")
_DEFAULTS = {"g": 1, "mb": 1, "sh": 1, "ph": 0, "dh": 0}
_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {  # setting in a key: field, parser of its value
    "--dt": ("types", Types.parse),
    "in": ("in_layout", str),
    "out": ("out_layout", str),
    "act": ("activation", activations.from_text),
    "res": ("residual", int),
    "threads": ("threads", int),
}


# Name of each number or tuple, length of the tuple, and lower bound of each number.
_NUMBERS = (("n", 0), *((name, 1) for name in ("c", "h", "w", "k", "r", "s", "groups", "threads")))
_FARTHEST = (
    1 << 31
)  # maximum stride: a longer one leaves any input as well, and may overflow int64 when multiplied by sizes
_TUPLES = (("stride", 2, 1), ("pads", 4, 0), ("dilation", 2, 1))


@dataclass(frozen=True)
class ConvProblem:
    """A 2-D convolution (cross-correlation) with bias, optional residual and activation.

    Equal problems have equal keys. Padding is therefore cut to what the last output reads.

    Attributes
    ----------
    n, c, h, w : int
        Batch (may be 0), input channels, input height and width.
    k, r, s : int
        Output channels, kernel height and width.
    stride : (rows, columns)
    pads : (top, bottom, left, right)
    dilation : (rows, columns)
        1 is dense.
    groups : int
        Divides `c` and `k`.
    in_layout, out_layout : str
        From `layouts.NAMES`.
    activation : tuple or None
        Normalised by `cpuconv.problem.activation.normalize`.
    residual : bool
        Whether an array of the output's shape is added before the activation.
    threads : int
        Threads that may share the work.
    types : Types
        Element types.

    Raises
    ------
    ArgumentError
        A size is out of range, groups do not divide, the kernel is larger than the padded input, a layout or an
        activation is unknown, or sums of int32 have an activation or a residual.
    ArgumentTypeError
        A size is not an integer.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    in_layout: str = "NCHW"
    out_layout: str = "NCHW"
    activation: activations.Activation | None = None
    residual: bool = False
    threads: int = 1
    types: Types = ALL_F32

    def __hash__(self) -> int:
        """Hash of the fields in which problems of one program differ; every call looks up by it."""
        return self._hash

    @lazy
    def _hash(self) -> int:
        return hash((self.n, self.c, self.h, self.w, self.k, self.r, self.stride, self.in_layout, self.threads))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the cached hash: hashes of text differ between processes."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name, least in _NUMBERS:
            value = getattr(self, name)
            if type(value) is not int or value < least:
                put(self, name, integer(value, name, least))
        for name, count, least in _TUPLES:
            values = getattr(self, name)
            if (
                type(values) is not tuple
                or len(values) != count
                or any(type(value) is not int or value < least for value in values)
            ):
                put(self, name, integers(values, name, count, least))
        if max(self.pads) > MAX_PADDING:
            raise ArgumentError(must("padding", f"no more than {MAX_PADDING:,} on a side", self.pads))
        if self.c % self.groups or self.k % self.groups:
            channels = f"a divisor of the {self.c} input channels and of the {self.k} output channels"
            raise ArgumentError(must("groups", channels, self.groups))
        for name in ("in_layout", "out_layout"):
            put(self, name, layout_name(getattr(self, name), name))
        put(self, "activation", activations.normalize(self.activation))
        put(self, "residual", bool(self.residual))
        if self.types.y == S32:  # raw accumulators
            for name, value in (("activation", self.activation), ("residual", self.residual or None)):
                if value is not None:
                    raise ArgumentError(must(name, "None where the result is int32", value))

        rows, cols = self.effective_kernel
        top, bottom, left, right = self.pads
        high, wide = self.h + top + bottom, self.w + left + right
        if rows > high or cols > wide:
            dilated = f" ({rows}x{cols} with its dilation)" if self.dilation != (1, 1) else ""
            limit = f"weights whose kernel is no larger than the padded input {high}x{wide}"
            raise ArgumentError(must("w", limit, f"a kernel of {self.r}x{self.s}{dilated}"))
        bottom = greatest(0, (self.oh - 1) * self.stride[0] + rows - self.h - top)
        right = greatest(0, (self.ow - 1) * self.stride[1] + cols - self.w - left)
        put(self, "pads", (top, bottom, left, right))
        if max(self.stride) > _FARTHEST:
            put(
                self,
                "stride",
                tuple(min(step, max(_FARTHEST, size)) for step, size in zip(self.stride, (high, wide), strict=True)),
            )

    def changed(self, **fields: Any) -> ConvProblem:
        """Copy the problem with other groups, layouts, threads or types, without checks: the values must be valid."""
        made = object.__new__(ConvProblem)
        made.__dict__.update({name: self.__dict__[name] for name in self.__dataclass_fields__}, **fields)
        return made

    @lazy
    def cg(self) -> int:
        """Input channels per convolution group."""
        return self.c // self.groups

    @lazy
    def kg(self) -> int:
        """Output channels per convolution group."""
        return self.k // self.groups

    @lazy
    def effective_kernel(self) -> tuple[int, int]:
        """Rows and columns that the dilated kernel spans."""
        return (self.r - 1) * self.dilation[0] + 1, (self.s - 1) * self.dilation[1] + 1

    @lazy
    def oh(self) -> int:
        """Output height."""
        return (self.h + self.pads[0] + self.pads[1] - (self.r - 1) * self.dilation[0] - 1) // self.stride[0] + 1

    @lazy
    def ow(self) -> int:
        """Output width."""
        return (self.w + self.pads[2] + self.pads[3] - (self.s - 1) * self.dilation[1] - 1) // self.stride[1] + 1

    @lazy
    def in_shape(self) -> tuple[int, int, int, int]:
        """Logical (N, C, H, W) of the input."""
        return self.n, self.c, self.h, self.w

    @lazy
    def out_shape(self) -> tuple[int, int, int, int]:
        """Logical (N, K, OH, OW) of the output."""
        return self.n, self.k, self.oh, self.ow

    @lazy
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Shape (K, C/groups, R, S) of the weights."""
        return self.k, self.cg, self.r, self.s

    @lazy
    def flops(self) -> int:
        """Multiplications and additions of the direct convolution."""
        return 2 * self.n * self.k * self.oh * self.ow * self.cg * self.r * self.s

    @lazy
    def in_bytes(self) -> int:
        """Bytes of the input without padding channels."""
        return self.n * self.c * self.h * self.w * self.types.x.bytes

    @lazy
    def weight_bytes(self) -> int:
        """Bytes of the unpacked weights."""
        return self.k * self.cg * self.r * self.s * self.types.w.bytes

    @lazy
    def out_bytes(self) -> int:
        """Bytes of the output without padding channels."""
        return self.n * self.k * self.oh * self.ow * self.types.y.bytes

    @lazy
    def stored_bytes(self) -> int:
        """Bytes of input and output as stored, including the padding channels of blocks."""
        ends = (self.in_layout, self.in_shape, self.types.x), (self.out_layout, self.out_shape, self.types.y)
        return sum(element.bytes * math.prod(layouts.get(layout).shape(*shape)) for layout, shape, element in ends)

    @lazy
    def shape_key(self) -> str:
        """Geometry as a complete benchdnn problem string."""
        values = (
            self.groups, self.n, self.c, self.h, self.w, self.k, self.oh, self.ow, self.r, self.s, *self.stride,
            self.pads[0], self.pads[2], self.dilation[0] - 1, self.dilation[1] - 1,
        )  # fmt: skip
        return "".join(f"{name}{value}" for name, value in zip(_NAMES, values, strict=True))

    @lazy
    def types_key(self) -> str:
        """Part of a key that states the types, after the geometry; empty if all are float32."""
        return "" if self.types == ALL_F32 else f" --dt={self.types}"

    @property
    def key(self) -> str:
        """Canonical string of the whole problem; `parse` reads it."""
        return _key(self)

    def __str__(self) -> str:
        return self.key

    @classmethod
    def parse(cls, text: str, **defaults: Any) -> ConvProblem:
        """Parse a key or a benchdnn problem string.

        Parameters
        ----------
        text : str
            ``mb1ic64ih56oc64oh56kh3ph1`` with an optional ``n"name"`` and types as in ``--dt=u8:s8:u8``, or a `key`. An
            omitted iw, ow, kw, sw, pw or dw equals its height counterpart. The defaults are 1 for mb, g and strides,
            and 0 for padding and dilation. Without oh, bottom padding equals top padding; likewise for ow.
        **defaults
            Fields that `text` does not state: in_layout, out_layout, activation, residual, threads, types.

        Raises
        ------
        ArgumentError
            `text` is not a problem string, or no convolution has these parameters.
        """
        words = re.sub(r'n"[^"]*"', " ", text, count=1).split()
        head = next((word for word in words if not word.startswith("--")), "")  # benchdnn puts types first
        if head:
            words.remove(head)
        sizes = _sizes(head, text)
        fields = {**defaults, **_settings(words, text)}
        stride, dilation = (sizes["sh"], sizes["sw"]), (sizes["dh"] + 1, sizes["dw"] + 1)
        pads: list[int] = []
        for axis, step, gap in zip("hw", stride, dilation, strict=True):
            size, kernel, near = (sizes[prefix + axis] for prefix in "ikp")
            outputs = sizes.get(f"o{axis}")
            needed = near if outputs is None else (outputs - 1) * step + (kernel - 1) * gap + 1 - size - near
            if needed <= -max(1, step):  # a further output would fit: the string contradicts itself
                raise ArgumentError(
                    must(
                        "problem",
                        f"a string whose o{axis} is not below the number of outputs of its other sizes",
                        repr(text),
                    )
                )
            pads += [near, max(0, needed)]
        return cls(
            n=sizes["mb"], c=sizes["ic"], h=sizes["ih"], w=sizes["iw"], k=sizes["oc"], r=sizes["kh"], s=sizes["kw"],
            stride=stride, pads=(pads[0], pads[1], pads[2], pads[3]), dilation=dilation, groups=sizes["g"], **fields,
        )  # fmt: skip


@functools.lru_cache(maxsize=4096)  # every look-up uses it
def _key(problem: ConvProblem) -> str:
    return (
        f"{problem.shape_key}{problem.types_key} in={problem.in_layout} out={problem.out_layout}"
        f" act={activations.to_text(problem.activation)} res={int(problem.residual)} threads={problem.threads}"
    )


def layout_name(value: Any, name: str) -> str:
    """Canonical name of the layout that the argument `name` has as its value."""
    try:
        return layouts.get(value).name
    except ValueError:
        known = ", ".join((*layouts.NAMES, *layouts.ALIASES))
        raise ArgumentError(must(name, f"one of {known}", repr(value))) from None


def _sizes(head: str, text: str) -> dict[str, int]:
    """Parse all sizes of the benchdnn geometry `head` and fill in defaults; oh and ow only if stated."""
    words = _SIZES.findall(head.replace("_", ""))
    sizes = {name: int(digits) for name, digits in words}
    well_formed = "".join(map("".join, words)) == head.replace("_", "") and len(sizes) == len(words)
    if not well_formed or not sizes.keys() <= set(_NAMES):
        raise ArgumentError(must("problem", "a problem string as in mb1ic64ih56oc64oh56kh3ph1", repr(text)))
    missing = [name for name in _NEEDED if name not in sizes]
    if missing:
        raise ArgumentError(must("problem", f"a problem string that states {', '.join(missing)}", repr(text)))
    sizes = {**_DEFAULTS, **sizes}
    for name in ("ih", "oh", "kh", "sh", "ph", "dh"):
        if name in sizes:
            sizes.setdefault(name[0] + "w", sizes[name])
    return sizes


def _settings(words: list[str], text: str) -> dict[str, Any]:
    """Parse the ``name=value`` settings of a key to fields of the problem."""
    settings: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        field, read = _SETTINGS.get(name, ("", str))
        if not field or field in settings or (read is int and not value.isdecimal()):
            raise ArgumentError(must("problem", f"a key whose settings are {', '.join(_SETTINGS)}", repr(text)))
        settings[field] = read(value)
    return settings


def is_plain(problem: ConvProblem) -> bool:
    """Whether the convolution is 1x1 with stride 1 and no padding: each output pixel reads one input pixel."""
    return (problem.r, problem.s, problem.stride) == (1, 1, (1, 1)) and not any(problem.pads)
