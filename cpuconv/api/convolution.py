"""Public calls for one convolution: conv2d, plan, explain."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from cpuconv.api.layer import Layer, LayerWeights, TemplateLayer
from cpuconv.api.new_sizes import PLAIN, NewSize, choice_of
from cpuconv.api.operands import Operands, operands, plan_operands
from cpuconv.api.options import Options
from cpuconv.conv import session
from cpuconv.conv.choice.model import AUTO
from cpuconv.conv.plan import Plan
from cpuconv.conv.template import Evaluated
from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.problem.arrays import as_operand, kernel_view, like, logical_shape, writable_view
from cpuconv.problem.integers import describe
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.requested_types import INPUTS, element_named, usual_input
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.runtime.code.parallel_compile import early_helpers
from cpuconv.runtime.float_environment import default_environment
from cpuconv.runtime.threads import get_num_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from autotune.report.explain import Explanation
    from cpuconv.option_types import (
        Accuracy,
        Activation,
        ConvOptions,
        ExplainOptions,
        LayoutName,
        LayoutNameOrAuto,
        Padding,
        Pair,
        Strategy,
        Threads,
    )

A = TypeVar("A")


@default_environment()
def plan(
    x_shape: Sequence[int],
    w: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    activation: Activation | None = None,
    residual: bool = False,
    in_layout: LayoutNameOrAuto = "NCHW",
    out_layout: LayoutNameOrAuto = "NCHW",
    threads: Threads = None,
    strategy: Strategy = "cached",
    accuracy: Accuracy = "standard",
    workspace_limit: int | None = None,
    reproducible: bool = False,
    algorithm: str | None = None,
    x_dtype: Any = None,
    y_dtype: Any = None,
    quantization: Quantization | None = None,
) -> Plan:
    """Prepare a convolution that runs many times: pack the weights once, so that calls do no look-ups.


    Parameters
    ----------
    x_shape : (N, C, H, W)
        Logical shape of the input, in any layout.
    w : array of float32, bfloat16, float16, int8 or uint8, (K, C/groups, R, S)
    bias : array of float32, (K,), or None
        Bfloat16 or float16 too, if that is the dtype of the weights; int32 for integer weights.
    stride, dilation : int or (rows, columns)
    padding : int, (ph, pw), ((top, bottom), (left, right)), "valid", "same", "same_upper" or "same_lower"
    groups : int
    activation : None, a name, ("clip", lo, hi), ("leaky_relu", slope), ("elu", alpha) or ("swish", alpha)
        relu, relu6, sigmoid, tanh, silu, hardswish, hardsigmoid, gelu, gelu_tanh, selu, softplus, mish. Applied after
        bias and residual.
    residual : bool
        Whether each call passes an array of the output's shape that is added to the result.
    in_layout, out_layout : str
        NCHW, NHWC, NCHW44 (= NCHW4c), NCHW8c, NCHW16c, NCHW32c, NCHW64c, or auto: the plan selects the layout and
        returns it as `in_layout` or `out_layout`.
    threads : int, "auto" or None
        "auto": the number of threads that the tuner measured as fastest for this shape. None: `get_num_threads()`.
    strategy : "heuristic", "cached" or "profile"
        "heuristic": the cost model selects. "cached": the tuner's stored result, else the cost model; nothing is timed.
        "profile": candidates without a stored result are timed now.
    accuracy : "exact", "standard" or "fast"
        Maximum error: that of direct summation; 1e-4 of the largest output value on unit-normal data; unlimited.
    workspace_limit : int or None
        Upper bound of the workspace of one call, in bytes.
    reproducible : bool
        Whether results are bit-identical for any number of threads, on one device and with one state of the store.
    algorithm : str or None
        Name of a solver, to restrict the selection to its candidates; or a candidate as `Plan.algorithm` prints it.
    x_dtype : "uint8" or "int8", or None
        Dtype of the inputs, for integer weights; None: uint8. For other weights, the inputs have the weights' dtype.
    y_dtype : str, dtype of NumPy or of torch, or None
        Dtype of the results. Bfloat16 or float16 weights: the same dtype or float32. Integer weights: uint8, int8,
        float32 or int32. None: the dtype of the inputs, or float32 if a quantization has no `y_scale`.
    quantization : Quantization or None
        Scales and zero points of integers. None for floating-point types, and for int32 sums of integers without zero
        points.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type; the message names it, the expected value and the actual value.
    WorkspaceError
        No algorithm fits the workspace limit.
    """
    options = Options(
        stride, padding, dilation, groups, activation, bool(residual), in_layout, out_layout,
        threads, strategy, accuracy, workspace_limit, reproducible, algorithm,
    )  # fmt: skip
    weight, element = as_operand(w, "w")
    x_element = element_named(x_dtype, "x_dtype", INPUTS) or usual_input(element)
    given = plan_operands(x_element, weight, element, bias, y_dtype, quantization, options.residual)
    options, weight, here = replace(options, types=given.types), given.weight, session.current
    new = NewSize.of_plan(options, x_shape, weight.shape, given.key)
    evaluated = new.find() if new else None
    problem = evaluated.problem if evaluated else options.problem(x_shape, weight.shape)
    name = here.fingerprint(weight, problem.threads)
    if evaluated is None:
        choice = options.choose(problem, name)
        evaluated = new.chosen(problem, choice) if new else None
    if evaluated:
        choice = choice_of(evaluated)
    form = evaluated.template.packing if evaluated else choice.candidate.packing(problem)
    packed = here.weights.find(name, form)
    if packed is None:
        packed = here.weights.pack(name, form, kernel_view(weight), problem.threads)
    if evaluated is None or not problem.types.sum.integer:
        numbers = given.numbers()
        return Plan(problem, choice, options.limits, packed, given.bias, numbers=numbers, evaluated=evaluated)
    epilogue = LayerWeights.of(evaluated.template).epilogue(problem, choice.candidate, name, given)
    numbers = given.numbers(zeros=True)
    return Plan(problem, choice, options.limits, packed, numbers=numbers, evaluated=evaluated, epilogue=epilogue)


def explain(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    bias: Any = None,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    residual: bool = False,
    types: str | Types = ALL_F32,
    **options: Unpack[ExplainOptions],
) -> Explanation:
    """Explain which algorithm `plan` would select for these arguments, and why; compile nothing.

    Parameters
    ----------
    x_shape : (N, C, H, W)
    w_shape : (K, C/groups, R, S)
    types : str or Types
        Element types of input, weights and result, such as "bf16:bf16:bf16" or "u8:s8:f32".
    bias, stride, padding, dilation, groups, residual, options
        As for `plan`, which also documents the errors.

    Returns
    -------
    Explanation
        A table of all candidates. It prints itself, and has `.to_dict()`.
    """
    if not isinstance(types, (str, Types)):
        raise ArgumentTypeError(must("types", "a string such as 'u8:s8:u8', or a Types", describe(types)))
    known = Types.parse(types) if isinstance(types, str) else types
    settings = Options(stride, padding, dilation, groups, residual=bool(residual), types=known, **options)
    problem = settings.problem(x_shape, w_shape)
    choice = settings.choose(problem)
    from cpuconv.conv.choice import explain as explaining  # deferred, because it imports the report tables

    return explaining.explain(problem, settings.limits, str(choice.candidate), choice.decided_by)


@overload
def conv2d(
    x: NDArray[Any],
    w: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    y_dtype: Any,
    quantization: Quantization | None = None,
    **options: Unpack[ConvOptions],
) -> NDArray[Any]: ...
@overload
def conv2d(
    x: A,
    w: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    quantization: None = None,
    **options: Unpack[ConvOptions],
) -> A: ...
@overload
def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    y_dtype: Any = None,
    quantization: Quantization | None = None,
    **options: Unpack[ConvOptions],
) -> Any: ...
def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    activation: Activation | None = None,
    residual: Any = None,
    in_layout: LayoutName = "NCHW",
    out_layout: LayoutName = "NCHW",
    out: Any = None,
    threads: Threads = None,
    strategy: Strategy = "cached",
    accuracy: Accuracy = "standard",
    workspace_limit: int | None = None,
    reproducible: bool = False,
    y_dtype: Any = None,
    quantization: Quantization | None = None,
) -> Any:
    """Compute activation(convolution of `x` and `w` + bias + residual) in one call.

    Plans and packed weights are cached. Every call hashes the content of the weights, so changes in place take effect
    immediately; a read-only NumPy array that owns its memory is read only once. Weights that change on every call are
    packed on every call and not cached.

    Parameters
    ----------
    x : array of float32, bfloat16, float16, uint8 or int8
        The array as stored, in `in_layout`: NumPy with any strides, a torch tensor, or a CPU object with `__dlpack__`
        or `__array__`. Read in place, never written.
    w : array of the dtype of `x`, or of int8 or uint8 where `x` is of integers, (K, C/groups, R, S)
        Any kind of array that `x` may be, or a `torch.nn.Parameter`. Gradients are not recorded.
    bias : array of float32, (K,), or None
        Bfloat16 or float16 too, if that is the dtype of the weights; int32 for integer weights.
    stride, dilation : int or (rows, columns)
    padding : int, (ph, pw), ((top, bottom), (left, right)), "valid", "same", "same_upper" or "same_lower"
    groups : int
        Number of channel groups; C for a depthwise convolution.
    activation : None, a name, ("clip", lo, hi), ("leaky_relu", slope), ("elu", alpha) or ("swish", alpha)
        relu, relu6, sigmoid, tanh, silu, hardswish, hardsigmoid, gelu, gelu_tanh, selu, softplus, mish. Applied after
        bias and residual.
    residual : array of the result's dtype or None
        Added before the activation; has the output's shape, in `out_layout`.
    in_layout, out_layout : str
        NCHW, NHWC, NCHW44 (= NCHW4c), NCHW8c, NCHW16c, NCHW32c or NCHW64c.
    out : numpy.ndarray, torch.Tensor or None
        Array to write to: C-contiguous, with the dtype of the result.
    threads : int, "auto" or None
        "auto": the number of threads that the tuner measured as fastest for this shape. None: `get_num_threads()`.
    strategy : "cached", "heuristic" or "profile"
        "cached": the tuner's stored result, else the cost model; nothing is timed. "heuristic": the cost model selects.
        "profile": candidates without a stored result are timed now.
    accuracy : "exact", "standard" or "fast"
        Maximum error: that of direct summation; 1e-4 of the largest output value on unit-normal data; unlimited.
    workspace_limit : int or None
        Upper bound of the workspace of one call, in bytes.
    reproducible : bool
        Whether results are bit-identical for any number of threads, on one device and with one state of the store.
    y_dtype : str, dtype of NumPy or of torch, or None
        Dtype of the result. Bfloat16 or float16 weights: the same dtype or float32. Integer weights: uint8, int8,
        float32 or int32. None: the dtype of `x`, or float32 if a quantization has no `y_scale`.
    quantization : Quantization or None
        Scales and zero points of integers. None for floating-point types, and for int32 sums of integers without zero
        points.

    Returns
    -------
    numpy.ndarray or torch.Tensor
        `out`, or a new array; a torch tensor if `x` is one. N = 0 gives an empty result.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type; the message names it, the expected value and the actual value.
    WorkspaceError
        No algorithm fits the workspace limit.
    """
    count = get_num_threads() if threads is None else threads
    added = residual is not None
    arguments = (  # in the field order of `Options`
        stride, padding, dilation, groups, activation, added, in_layout, out_layout,
        count, strategy, accuracy, workspace_limit, reproducible,
    )  # fmt: skip
    given = operands(x, w, bias, y_dtype, quantization, added)
    try:  # serialised, because 1, 1.0 and True are equal as keys but differ as bytes
        key: Any = given.x.shape, given.weight.shape, marshal.dumps(arguments, PLAIN)
        if given.types is not ALL_F32:
            key += given.key
        layer = session.current.cache.get(key)
    except (TypeError, ValueError):  # an argument of another type, such as a NumPy integer
        key = layer = None
    if layer is None:
        layer = _layer(key, Options(*arguments, types=given.types), given)
    if out is None:
        result = layer.run(given, residual, None)
        return result if given.x is x else like(x, result)
    target = out if isinstance(out, np.ndarray) else writable_view(out, "out")
    if any(other is not None and np.may_share_memory(target, other) for other in (given.weight, given.bias)):
        raise ArgumentError(must("out", "separate memory", "memory that an input occupies"))
    layer.run(given, residual, target)
    return out


@default_environment()
def _layer(key: Any, options: Options, given: Operands) -> Layer:
    """The layer of a call, cached under `key`; without a key, under the problem, threads, strategy and limits."""
    x, weight = given.x, given.weight
    channels = weight.shape[1] * (int(options.groups) if hasattr(options.groups, "__index__") else 1)
    x_shape = logical_shape(x, _concrete(options.in_layout), channels, "x")
    new = None if key is None else NewSize.of_call(options, x_shape, key[1:])
    found = new and new.find()
    if new and found:
        return _by_template(key, new, found, options, given)
    problem = options.problem(x_shape, weight.shape)
    here = session.current
    if key is None:
        key = problem, options.threads, options.strategy, options.limits, *given.key
        layer = here.cache.get(key)
        if layer is not None:
            return layer
    with early_helpers():
        choice = options.choose(problem, here.fingerprint(weight, problem.threads))
        found = new and new.chosen(problem, choice)
        if new and found:
            return _by_template(key, new, found, options, given)
        layer = Layer(Plan(problem, choice, options.limits, None, numbers=given.numbers(zeros=True)), here)
    here.cache.put(key, layer, layer.plan.nbytes)
    return layer


def _by_template(key: Any, new: NewSize, found: Evaluated, options: Options, given: Operands) -> Layer:
    """The layer that runs the kernel calls of a template, cached under `key`."""
    here, problem, kin = session.current, found.problem, LayerWeights.of(found.template)
    numbers = given.numbers(zeros=True)
    plan = Plan(problem, choice_of(found), options.limits, None, numbers=numbers, evaluated=found, epilogue=kin.blank)
    kin.blank = plan.epilogue

    def leave() -> None:
        new.of.leave_out(new.sizes)
        here.cache.drop(key)

    layer = TemplateLayer(plan, here, kin, leave)
    here.cache.put(key, layer, plan.nbytes)
    return layer


def _concrete(in_layout: str) -> str:
    if in_layout == AUTO:
        raise ArgumentError(must("in_layout", "the layout that 'x' is in: only a plan can choose", repr(AUTO)))
    return in_layout
