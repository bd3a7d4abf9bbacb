"""Arguments that several kernels have in common: operands, the problem's sizes, and the workspace of workers."""

from __future__ import annotations

from cpuconv.kernels.binding.steps import Args, Operand, Operands, Ref, Space
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.kernel import Kernel


def operand_args(operands: Operands) -> Args:
    """Where operands lie; without a residual its address is the output's, and their distance 0."""
    residual = operands.residual or operands.y
    return {"x": operands.x.ref, "y": operands.y.ref, "w": Ref("w"), "bias": Ref("bias"), "residual": residual.ref}


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
