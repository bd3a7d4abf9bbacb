"""The table of elementwise functions, from which elementwise operators, epilogues and their references are built.

A function is a formula of other functions, or has a NumPy reference here and an emitter in
`cpuconv.kernels.elementwise.functions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Formula = Callable[..., Any]  # takes a callable that applies a function by its name, then the operands


class Function(NamedTuple):
    """One row of the table.

    Attributes
    ----------
    meaning : Callable
        NumPy reference; takes float64 arrays, or such arrays and numbers.
    cost : float
        Approximate cycles per vector, as measured with AVX-512; 0 for a formula, whose cost follows from its functions.
    scalars : tuple[str, ...] or None
        For an activation that may end a convolution: names of the scalars after its operand. None: not an activation.
    formula : Formula or None
        Definition by other functions. None: the function has an emitter of its own.
    fused : bool
        Whether networks fuse the activation into convolutions: strips of the closed kernel set compute it.
    """

    meaning: Callable[..., np.ndarray]
    cost: float = 0.5
    scalars: tuple[str, ...] | None = None
    formula: Formula | None = None
    fused: bool = True


def made_of(formula: Formula, *, scalars: tuple[str, ...] | None = None, fused: bool = True) -> Function:
    """Make the row of a function that is a formula of other functions."""
    meaning = partial(formula, lambda name, *values: FUNCTIONS[name].meaning(*values))
    return Function(meaning, 0, scalars, formula, fused)


_each_erf: Any = np.frompyfunc(math.erf, 1, 1)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(_each_erf(x), np.float64)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def root(x: np.ndarray) -> np.ndarray:
    """x to the power 0.5: √x, except that −∞ gives ∞ and −0 gives 0."""
    return np.where(x == -np.inf, np.inf, np.sqrt(x + 0.0))


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x to the power y, with the special cases of C99; for y = 0.5 NumPy would return the square root."""
    return np.where(y == 0.5, root(x), np.power(x, y))


def _choose(condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(condition != 0, x, y)


def _elu(f: Any, x: Any, alpha: Any) -> Any:
    """x above 0, alpha (e^x - 1) below."""
    return f("add", f("max", x, 0.0), f("mul", alpha, f("expm1", f("min", x, 0.0))))


def _swish(f: Any, x: Any, alpha: Any) -> Any:
    return f("mul", x, f("sigmoid", f("mul", x, alpha)))


_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875  # float32, as ONNX states them

COMPARISONS = (np.equal, np.less, np.less_equal, np.greater, np.greater_equal)

FUNCTIONS: dict[str, Function] = {
    "relu": made_of(lambda f, x: f("max", x, 0.0), scalars=()),
    "relu6": made_of(lambda f, x: f("clip", x, 0.0, 6.0), scalars=()),
    "clip": made_of(lambda f, x, lo, hi: f("min", f("max", x, lo), hi), scalars=("lo", "hi")),
    "leaky_relu": Function(lambda x, slope: np.where(x > 0, x, x * slope), 1.5, ("slope",)),
    "sigmoid": Function(_sigmoid, 6, ()),
    "tanh": Function(np.tanh, 6.5, ()),
    "silu": Function(lambda x: x * _sigmoid(x), 6, ()),
    "hardsigmoid": Function(lambda x: np.minimum(np.maximum(x / 6 + 0.5, 0), 1), 1.5, ()),
    "hardswish": made_of(lambda f, x: f("mul", x, f("hardsigmoid", x)), scalars=()),
    "gelu": Function(_gelu, 6, ()),
    "gelu_tanh": Function(_gelu_tanh, 6, ()),
    "elu": made_of(_elu, scalars=("alpha",), fused=False),
    "selu": made_of(lambda f, x: f("mul", _SELU_GAMMA, f("elu", x, _SELU_ALPHA)), scalars=(), fused=False),
    "swish": made_of(_swish, scalars=("alpha",), fused=False),
    "softplus": Function(lambda x: np.logaddexp(x, 0), 12, (), fused=False),
    "mish": Function(lambda x: x * np.tanh(np.logaddexp(x, 0)), 9, (), fused=False),
    "add": Function(np.add),
    "sub": Function(np.subtract),
    "mul": Function(np.multiply),
    "div": Function(np.divide, 7),
    "quotient": Function(np.divide, 7),  # correctly rounded
    "max": Function(np.maximum, 1),
    "min": Function(np.minimum, 1),
    "neg": Function(np.negative),
    "abs": Function(np.abs),
    "sqrt": Function(np.sqrt, 8),
    "floor": Function(np.floor),
    "ceil": Function(np.ceil),
    "round": Function(np.rint),  # halves to even
    "exp": Function(np.exp, 5),
    "expm1": Function(np.expm1, 8),
    "log": Function(np.log, 12),
    "pow": Function(power, 30),
    "root": Function(root, 9),
    "erf": Function(_erf, 9),
    "sin": Function(np.sin, 14),
    "cos": Function(np.cos, 15),
    "prelu": Function(lambda x, slope: np.where(x < 0, x * slope, x), 1.5),
    "choose": Function(_choose, 1),
    **{each.__name__: Function(each, 1) for each in COMPARISONS},  # 1 where they hold, else 0
    "above": Function(lambda x, threshold: np.where(x > threshold, x, 0), 1),
}
"""Functions by the names that expressions and activations use."""
