"""Arguments that several kernels have in common: operands, views, the problem's sizes, and workspace of workers."""

from __future__ import annotations

from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.kernel import Kernel
from cpuconv.solvers.shared.base import FLOAT, Args, Operand, Operands, Ref, Space, divide
from layouts import Strides


def operand_args(operands: Operands) -> Args:
    """Where operands lie; without a residual its address is the output's, and their distance 0."""
    residual = operands.residual or operands.y
    return {"x": operands.x.ref, "y": operands.y.ref, "w": Ref("w"), "bias": Ref("bias"), "residual": residual.ref}


def view_args(prefix: str, strides: Strides) -> Args:
    """The strides `<prefix>_image`, `<prefix>_block` … `<prefix>_w` of a kernel that takes any view."""
    names = {"image": "n", **{name: name for name in ("block", "cb", "c", "h", "w")}}
    return {f"{prefix}_{word}": getattr(strides, name) for word, name in names.items()}


def output_args(y: Operand) -> Args:
    """The strides of an output in channel blocks."""
    return {"y_image": y.strides.n, "y_vector": y.strides.cb, "y_line": y.strides.h}


def problem_args(kernel: Kernel, problem: ConvProblem) -> Args:
    """The numbers of a problem that the kernel asks for by these names."""
    words = {
        "batch": problem.n,
        "groups": problem.groups,
        "group_kernels": problem.kg,
        "group_channels": problem.cg,
        "in_height": problem.h,
        "in_width": problem.w,
        "kernel_h": problem.r,
        "kernel_w": problem.s,
        "stride_h": problem.stride[0],
        "stride_w": problem.stride[1],
        "dilation_h": problem.dilation[0],
        "dilation_w": problem.dilation[1],
        "pad_top": problem.pads[0],
        "pad_left": problem.pads[2],
    }
    return {name: words[name] for name in kernel.fields if name in words}


def worker_args(name: str, space: Space, step: int, workers: int) -> Args:
    """`<name>` and `<name>_step`: `step` bytes of workspace for each worker; an address of 0 where that is none."""
    return {name: space.reserve(step * workers) if step else 0, f"{name}_step": step}


def span(problem: ConvProblem, strides: Strides) -> int:
    """Bytes from the first element of the input that are all within its memory; 0 if some stride runs backwards."""
    if min(strides) < 0:
        return 0
    steps = (strides.n, strides.cb, strides.c, strides.h, strides.w)
    counts = (problem.n, divide(problem.c, strides.block), strides.block, problem.h, problem.w)
    return sum((count - 1) * step for count, step in zip(counts, steps, strict=True)) + FLOAT
