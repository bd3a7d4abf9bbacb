"""The public calls: conv2d, plan, explain."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cpuconv import explain as explaining
from cpuconv import missed, select
from cpuconv.arguments import problem_from_arguments
from cpuconv.arrays import as_float32_view, logical_shape
from cpuconv.errors import ArgumentError, must
from cpuconv.plan import Plan
from cpuconv.problem import ConvProblem
from cpuconv.runtime.threads import check_threads, maximum_threads, wanted_threads
from cpuconv.select import AUTO, Limits

if TYPE_CHECKING:
    from autotune.background import Background


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
    """A convolution ready to run many times: weights packed once, nothing looked up in a call.

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
        NCHW, NHWC, NCHW44 (= NCHW4c), NCHW8c, NCHW16c, or auto: the plan takes its favourite and says which.
    threads : int, "auto" or None
        "auto": as many as are fastest for this shape by what the tuner has stored. None: `get_num_threads()`.
    strategy : "heuristic", "cached" or "profile"
        Cost model alone; what the tuner has stored, else the model (never times); or time now what is not stored.
    accuracy : "exact", "standard" or "fast"
        The error of the direct sum; at most 1e-4 of the output's largest value on unit-normal data; or more.
    workspace_limit : int or None
        Most bytes of workspace a call may use.
    reproducible : bool
        The same result to the last bit whatever the number of threads, on one device with one state of the store.
    algorithm : str or None
        A solver's name, to choose among its candidates, or one with parameters as `Plan.algorithm` prints it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument of a value or type it must not have; the message says which, what it must be and what it was.
    WorkspaceError
        No algorithm meets the workspace limit.
    """
    weight = as_float32_view(w, "w")
    problem, limits = _problem(
        x_shape,
        weight.shape,
        (stride, padding, dilation, groups, activation, bool(residual)),
        (in_layout, out_layout),
        threads,
        (strategy, accuracy, workspace_limit, reproducible),
    )
    return _make(problem, limits, strategy, algorithm, weight, _bias_view(bias, problem))


def explain(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
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
) -> explaining.Explanation:
    """Which algorithm `plan` would take for these arguments, and why: printable, and `.to_dict()`.

    Arguments are those of `plan`, with the weights' shape (K, C/groups, R, S) in place of the weights; nothing is
    compiled. Raises what `plan` raises.
    """
    problem, limits = _problem(
        x_shape,
        w_shape,
        (stride, padding, dilation, groups, activation, bool(residual)),
        (in_layout, out_layout),
        threads,
        (strategy, accuracy, workspace_limit, reproducible),
    )
    choice = select.choose(problem, strategy, limits, algorithm)
    return explaining.explain(problem, limits, str(choice.candidate), choice.decided_by)


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
    out: np.ndarray | None = None,
    threads: int | str | None = None,
    strategy: str = "cached",
    accuracy: str = "standard",
    workspace_limit: int | None = None,
    reproducible: bool = False,
) -> np.ndarray:
    """activation(convolution of `x` and `w` + bias + residual), as one call.

    Weights that are a read-only NumPy array are packed once and remembered for as long as the array lives; writable
    ones are packed on every call, which costs about as much as a small convolution: make them read-only
    (`w.flags.writeable = False`) or use `plan`.

    Parameters
    ----------
    x : array of float32
        The physical array of `in_layout`: NumPy of any strides, or a CPU object with `__dlpack__` or `__array__`.
        Read in place, never written.
    residual : array of float32 or None
        Added before the activation; the output's shape in `out_layout`.
    out : numpy.ndarray or None
        C-contiguous float32 for the result.

    The other parameters, and the errors raised, are those of `plan`. N = 0 gives an empty result.
    """
    arguments = (stride, padding, dilation, groups, activation, residual is not None, in_layout, out_layout)
    wanted = threads if threads is not None else wanted_threads(None)
    settings = (wanted, strategy, accuracy, workspace_limit, reproducible)
    key = None
    if type(w) is np.ndarray and not w.flags.writeable:
        key = (id(w), getattr(x, "shape", None), arguments, settings)
        try:
            entry = _remembered.get(key)
        except TypeError:  # a list among the arguments
            key = None
        else:
            if entry is not None and entry[0]() is w:
                return _run(entry[1], x, residual, out, w, bias)
    weight = as_float32_view(w, "w")
    if weight.ndim != 4:
        raise ArgumentError(must("w", "of rank 4, (K, C/groups, R, S)", f"of rank {weight.ndim}, {weight.shape}"))
    view = as_float32_view(x, "x")
    channels = weight.shape[1] * (int(groups) if hasattr(groups, "__index__") else 1)
    x_shape = logical_shape(view, _concrete(in_layout), channels, "x")
    problem, limits = _problem(
        x_shape,
        weight.shape,
        arguments[:6],
        (_concrete(in_layout), out_layout),
        threads,
        (strategy, accuracy, workspace_limit, reproducible),
    )
    made = _make(problem, limits, strategy, None, weight, None)
    if key is not None:
        _remember(key, w, made)
    return _run(made, x, residual, out, weight, bias)


def tune_in_background(effort: str = "quick") -> Background:
    """Start a process of low priority that tunes the shapes which this and other programs ask for and nobody tuned.

    It ends with this process, or by `.stop()`; a second call returns the one that runs. What it finds is taken by later
    calls of `conv2d` within seconds, and by plans made later.

    Parameters
    ----------
    effort : "quick", "normal" or "exhaustive"
        What is spent on a shape.
    """
    global _background
    from autotune.background import Background
    from autotune.paths import store_path

    if _background is None or not _background.is_running():
        _background = Background("cpuconv.workload:workload", store_path(), effort)
    return _background


_background: Background | None = None


def _run(made: Plan, x: Any, residual: Any, out: Any, weight: np.ndarray, bias: Any) -> np.ndarray:
    bias = _bias_view(bias, made.problem, zeros=True)
    if isinstance(out, np.ndarray) and (np.may_share_memory(out, weight) or np.may_share_memory(out, bias)):
        raise ArgumentError(must("out", "memory of its own", "memory that an input occupies"))
    return made.run(x, residual, out, bias)


_remembered: dict[Any, tuple[weakref.ref, Plan]] = {}
_MOST_REMEMBERED = 256  # plans: one weight array may meet any number of input shapes


def _remember(key: Any, w: np.ndarray, made: Plan) -> None:
    while len(_remembered) >= _MOST_REMEMBERED:
        _remembered.pop(next(iter(_remembered), None), None)
    _remembered[key] = (weakref.ref(w, lambda _: _remembered.pop(key, None)), made)


def _forget(problem: ConvProblem) -> None:
    """Drop remembered plans of a problem, whatever their threads: it has been tuned since they were made."""
    for key in list(_remembered):
        entry = _remembered.get(key)
        if entry is not None and replace(entry[1].problem, threads=problem.threads) == problem:
            _remembered.pop(key, None)


missed.listeners.append(_forget)


def _concrete(in_layout: str) -> str:
    if in_layout == AUTO:
        raise ArgumentError(must("in_layout", "the layout that 'x' is in: only a plan can choose", repr(AUTO)))
    return in_layout


def _bias_view(bias: Any, problem: ConvProblem, zeros: bool = False) -> np.ndarray | None:
    """The bias, checked; None as it is, or (K,) zeros where a remembered plan must forget an earlier one."""
    if bias is None:
        return np.zeros(problem.k, np.float32) if zeros else None
    view = as_float32_view(bias, "bias")
    if view.shape != (problem.k,):
        raise ArgumentError(must("bias", f"of shape ({problem.k},)", f"{view.shape}"))
    return view


def _problem(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    arguments: tuple[Any, ...],
    wanted_layouts: tuple[str, str],
    threads: int | str | None,
    options: tuple[Any, ...],
) -> tuple[ConvProblem, Limits]:
    select.check_options(*options)
    concrete = ["NCHW" if name == AUTO else name for name in wanted_layouts]
    wanted = wanted_threads(threads)
    count = maximum_threads() if wanted == AUTO else check_threads(wanted)
    problem = problem_from_arguments(x_shape, w_shape, *arguments, *concrete, count)
    limits = Limits(*options[1:])
    if AUTO in wanted_layouts:
        problem = select.resolve_layouts(problem, *wanted_layouts, limits)
    if wanted == AUTO:
        problem = select.best_threads(problem, options[0], limits)
    return problem, limits


def _make(
    problem: ConvProblem, limits: Limits, strategy: str, algorithm: str | None, weight: np.ndarray, bias: Any
) -> Plan:
    if problem.n == 0:  # nothing will run: any algorithm will do
        problem_to_choose = replace(problem, n=1)
        choice = select.choose(problem_to_choose, "heuristic", limits, algorithm)
    else:
        choice = select.choose(problem, strategy, limits, algorithm)
    return Plan(problem, choice, limits, weight, bias)
