"""The calls of one convolution: conv2d, plan, explain."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.report.explain import Explanation
from cpuconv.api.layer import Layer
from cpuconv.api.options import Options
from cpuconv.conv import session
from cpuconv.conv.choice import explain as explaining
from cpuconv.conv.choice.model import AUTO
from cpuconv.conv.plan import Plan
from cpuconv.errors import ArgumentError, must
from cpuconv.problem.arrays import FLOAT32, as_float32_view, logical_shape, writable_view
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.threads import wanted_threads

_PLAIN = 2  # version of marshal's format: equal values of equal types give equal bytes


def plan(
    x_shape: Sequence[int],
    w: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    activation: Any = None,
    residual: bool = False,
    in_layout: str = "NCHW",
    out_layout: str = "NCHW",
    threads: int | str | None = None,
    strategy: str = "cached",
    accuracy: str = "standard",
    workspace_limit: int | None = None,
    reproducible: bool = False,
    algorithm: str | None = None,
) -> Plan:
    """Make a convolution ready to run many times: weights are packed once, and a call looks nothing up.

    Parameters
    ----------
    x_shape : (N, C, H, W)
        Logical shape of the input, whatever its layout.
    w : array of float32, (K, C/groups, R, S)
    bias : array of float32, (K,), or None
    stride, dilation : int or (rows, columns)
    padding : int, (ph, pw), ((top, bottom), (left, right)), "valid", "same", "same_upper" or "same_lower"
    groups : int
    activation : None, a name, ("clip", lo, hi) or ("leaky_relu", slope)
        relu, relu6, sigmoid, tanh, silu, hardswish, hardsigmoid, gelu, gelu_tanh. Applied after bias and residual.
    residual : bool
        Whether calls pass an array of the output's shape to add.
    in_layout, out_layout : str
        NCHW, NHWC, NCHW44 (= NCHW4c), NCHW8c, NCHW16c, or auto: the plan chooses, and its `in_layout` says what.
    threads : int, "auto" or None
        "auto": the number that the tuner found fastest for this shape. None: `get_num_threads()`.
    strategy : "heuristic", "cached" or "profile"
        "heuristic": the cost model decides. "cached": what the tuner has stored, else the model; nothing is timed.
        "profile": what is not stored is timed now.
    accuracy : "exact", "standard" or "fast"
        Largest error: that of the direct sum; 1e-4 of the output's largest value on unit-normal data; any.
    workspace_limit : int or None
        Most bytes of workspace a call may use.
    reproducible : bool
        Whether results are equal to the last bit for any number of threads, on one device and state of the store.
    algorithm : str or None
        A solver's name, to choose among its candidates, or a candidate as `Plan.algorithm` prints it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type; the message says which, what it must be and what it was.
    WorkspaceError
        No algorithm meets the workspace limit.
    """
    options = Options(
        stride, padding, dilation, groups, activation, bool(residual), in_layout, out_layout,
        threads, strategy, accuracy, workspace_limit, reproducible, algorithm,
    )  # fmt: skip
    weight = as_float32_view(w, "w")
    problem = options.problem(x_shape, weight.shape)
    bias = _bias_view(bias, problem)
    here = session.current
    name = here.fingerprint(weight, problem.threads)
    choice = options.choose(problem, name)
    form = choice.candidate.packing(problem)
    packed = here.weights.find(name, form)
    if packed is None:
        packed = here.weights.pack(name, form, weight, problem.threads)
    return Plan(problem, choice, options.limits, packed, bias)


def explain(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    residual: bool = False,
    **options: Any,
) -> Explanation:
    """Which algorithm `plan` would take for these arguments, and why; nothing is compiled.

    Parameters and errors are those of `plan`, with the weights' shape (K, C/groups, R, S) in place of the weights. The
    result prints itself, and has `.to_dict()`.
    """
    asked = Options(stride, padding, dilation, groups, residual=bool(residual), **options)
    problem = asked.problem(x_shape, w_shape)
    choice = asked.choose(problem)
    return explaining.explain(problem, asked.limits, str(choice.candidate), choice.decided_by)


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    activation: Any = None,
    residual: Any = None,
    in_layout: str = "NCHW",
    out_layout: str = "NCHW",
    out: Any = None,
    threads: int | str | None = None,
    strategy: str = "cached",
    accuracy: str = "standard",
    workspace_limit: int | None = None,
    reproducible: bool = False,
) -> Any:
    """activation(convolution of `x` and `w` + bias + residual), as one call.

    Plans and packed weights are remembered. Weights are recognised by their content, which every call reads, so that a
    change in place counts at once; a read-only NumPy array that owns its memory is read only once. Weights that change
    on every call are packed on every call and not remembered.

    Parameters
    ----------
    x : array of float32
        The physical array of `in_layout`: NumPy of any strides, a torch tensor, or a CPU object with `__dlpack__` or
        `__array__`. Read in place, never written.
    w : array of float32, (K, C/groups, R, S)
        As `x`; a `torch.nn.Parameter` too. Gradients are not recorded.
    residual : array of float32 or None
        Added before the activation; the output's shape in `out_layout`.
    out : numpy.ndarray, torch.Tensor or None
        C-contiguous float32 for the result.

    Returns
    -------
    numpy.ndarray or torch.Tensor
        `out`; or a new array, a tensor if `x` is one. N = 0 gives an empty result.

    Notes
    -----
    The other parameters, and the errors raised, are those of `plan`.
    """
    if threads is None:
        threads = wanted_threads(None)
    added = residual is not None
    asked = (  # in the order of `Options`
        stride, padding, dilation, groups, activation, added, in_layout, out_layout,
        threads, strategy, accuracy, workspace_limit, reproducible,
    )  # fmt: skip
    weight = w if type(w) is np.ndarray and w.dtype is FLOAT32 and w.flags.aligned else as_float32_view(w, "w")
    try:  # as bytes, in which 1, 1.0 and True differ
        key: Any = getattr(x, "shape", None), weight.shape, marshal.dumps(asked, _PLAIN)
        layer = session.current.remembered.get(key)
    except (TypeError, ValueError):  # an argument of another type, such as NumPy's integers
        key = layer = None
    if layer is None:
        layer = _layer(key, x, weight, Options(*asked))
    if bias is not None:
        bias = _bias_view(bias, layer.plan.problem)
    if out is not None and _overlaps(out, weight, bias):
        raise ArgumentError(must("out", "memory of its own", "memory that an input occupies"))
    return layer.run(x, residual, out, bias, weight)


def _layer(key: Any, x: Any, weight: np.ndarray, options: Options) -> Layer:
    """The layer of a call, remembered under `key`; without a key, under the problem and the options that decide."""
    if weight.ndim != 4:
        raise ArgumentError(must("w", "of rank 4, (K, C/groups, R, S)", f"of rank {weight.ndim}, {weight.shape}"))
    channels = weight.shape[1] * (int(options.groups) if hasattr(options.groups, "__index__") else 1)
    x_shape = logical_shape(as_float32_view(x, "x"), _concrete(options.in_layout), channels, "x")
    problem = options.problem(x_shape, weight.shape)
    here = session.current
    if key is None:
        key = problem, options.threads, options.strategy, options.limits
        layer = here.remembered.get(key)
        if layer is not None:
            return layer
    choice = options.choose(problem, here.fingerprint(weight, problem.threads))
    layer = Layer(Plan(problem, choice, options.limits, None), here)
    here.remembered.put(key, layer, layer.plan.nbytes)
    return layer


def _overlaps(out: Any, *inputs: np.ndarray | None) -> bool:
    target = out if isinstance(out, np.ndarray) else writable_view(out, "out")
    return any(other is not None and np.may_share_memory(target, other) for other in inputs)


def _concrete(in_layout: str) -> str:
    if in_layout == AUTO:
        raise ArgumentError(must("in_layout", "the layout that 'x' is in: only a plan can choose", repr(AUTO)))
    return in_layout


def _bias_view(bias: Any, problem: ConvProblem) -> np.ndarray | None:
    """The bias, checked; None as it is."""
    if bias is None:
        return None
    view = as_float32_view(bias, "bias")
    if view.shape != (problem.k,):
        raise ArgumentError(must("bias", f"of shape ({problem.k},)", f"{view.shape}"))
    return view
