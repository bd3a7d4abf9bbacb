"""Operators for which ONNX's reference evaluator conforms to the specification; others are refused on reading.

Each operator below was compared with the specification and, if it has the operator, with ONNX Runtime, in all forms
except those that `FORMS` excludes. Tests repeat the comparison (`tests/reading/test_evaluated.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpuconv.errors import SourceError

_ELEMENTWISE = "Acos Acosh Asin Asinh Atan Atanh Cosh Sinh Tan Shrink SwiGLU BitCast BitShift"
_ELEMENTWISE += " BitwiseAnd BitwiseNot BitwiseOr BitwiseXor"
_SIGNALS = "BlackmanWindow HammingWindow HannWindow DFT STFT MelWeightMatrix"
_LAYERS = "Attention BatchNormalization CausalConvWithState GroupNormalization LinearAttention"
_LAYERS += " NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"
_MOVES = "CenterCropPad Col2Im CumProd EyeLike ReverseSequence TfIdfVectorizer ImageDecoder"
SEQUENCES = frozenset(["SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence"])
"""Operators whose output is a sequence of tensors."""
_OF_SEQUENCES = "SequenceAt SequenceLength ConcatFromSequence"
_LEARNERS = "ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LabelEncoder LinearRegressor Normalizer"
_LEARNERS += " OneHotEncoder SVMRegressor Scaler TreeEnsemble TreeEnsembleRegressor"

OPERATORS: dict[str, frozenset[str]] = {
    "": frozenset(" ".join((_ELEMENTWISE, _SIGNALS, _LAYERS, _MOVES, _OF_SEQUENCES)).split()) | SEQUENCES,
    "ai.onnx.ml": frozenset(_LEARNERS.split()),
    "ai.onnx.preview": frozenset(("FlexAttention",)),
}
"""Supported operators, by domain."""

FORMS: dict[str, dict[str, tuple[str, ...]]] = {
    "LinearRegressor": {"post_transform": ("NONE",)},
    "Normalizer": {"norm": ("L1", "L2")},
    "SVMRegressor": {"post_transform": ("NONE",)},
    "TreeEnsembleRegressor": {"post_transform": ("NONE",), "aggregate_function": ("SUM", "AVERAGE")},
}
"""Allowed values of string attributes, for operators of which the evaluator lacks some forms."""
_DEFAULTS = {"post_transform": "NONE", "norm": "MAX", "aggregate_function": "SUM"}

_PACKAGES = {"ImageDecoder": "PIL"}  # required by the evaluator for an operator


def check_evaluated(op: str, domain: str, texts: Mapping[str, Any], label: str) -> None:
    """Check that ONNX's evaluator computes a node as ONNX specifies.

    Parameters
    ----------
    op, domain : str
        "" is ONNX's own domain.
    texts : mapping of str to str
        String attributes.
    label : str
        Name of the node in messages.

    Raises
    ------
    SourceError
        The evaluator does not, or is not known to.
    """
    if op not in OPERATORS.get(domain, ()):
        raise SourceError(f"{label}: there is no kernel for this operator, and no reference that is known to be right.")
    for name, allowed in FORMS.get(op, {}).items():
        stated = texts.get(name, _DEFAULTS[name])
        if stated not in allowed:
            raise SourceError(f"{label}: the attribute {name!r} must be {' or '.join(allowed)}, not {stated}.")
    if op in _PACKAGES:
        try:
            __import__(_PACKAGES[op])
        except ImportError as error:
            raise SourceError(f"{label}: ONNX's reference evaluator needs Pillow for it: {error}.") from error
