"""Arguments that several kernels share: operands, the problem's sizes, and the workspace of workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter

from cpuconv.kernels.binding.steps import Args, Operand, Operands, Ref, Space
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.kernel import Kernel

_NUMBERS: dict[str, Callable[[ConvProblem], int]] = {
    "batch": attrgetter("n"),
    "groups": attrgetter("groups"),
    "group_kernels": attrgetter("kg"),
    "group_channels": attrgetter("cg"),
    "in_height": attrgetter("h"),
    "in_width": attrgetter("w"),
    "kernel_h": attrgetter("r"),
    "kernel_w": attrgetter("s"),
    "stride_h": lambda problem: problem.stride[0],
    "stride_w": lambda problem: problem.stride[1],
    "dilation_h": lambda problem: problem.dilation[0],
    "dilation_w": lambda problem: problem.dilation[1],
    "pad_top": lambda problem: problem.pads[0],
    "pad_left": lambda problem: problem.pads[2],
}


def operand_args(operands: Operands) -> Args:
    """Addresses of the operands; without a residual, its address is the output's."""
    residual = operands.residual or operands.y
    return {"x": operands.x.ref, "y": operands.y.ref, "w": Ref("w"), "bias": Ref("bias"), "residual": residual.ref}


def output_args(y: Operand) -> Args:
    """Strides of an output in channel blocks."""
    return {"y_image": y.strides.n, "y_vector": y.strides.cb, "y_line": y.strides.h}


def stride_args(name: str, strides: Sequence[int], axes: str) -> Args:
    """`<name>_<axis>` for each of the axes that `axes` names, in order: its stride. `-` stands for one left out."""
    return {f"{name}_{axis}": stride for axis, stride in zip(axes.split(), strides, strict=False) if axis != "-"}


def problem_args(kernel: Kernel, problem: ConvProblem) -> Args:
    """Values of the problem that are among the kernel's arguments."""
    return {name: _NUMBERS[name](problem) for name in _asked(kernel)}


@functools.cache
def _asked(kernel: Kernel) -> list[str]:
    return [name for name in kernel.fields if name in _NUMBERS]


def worker_args(name: str, space: Space, step: int, workers: int) -> Args:
    """`<name>` and `<name>_step`: `step` bytes of workspace per worker; the address is 0 if `step` is 0."""
    return {name: space.reserve(step * workers) if step else 0, f"{name}_step": step}
