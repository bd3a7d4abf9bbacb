"""Copy between forms; layout planning inserts it between other operators."""

from __future__ import annotations

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Node
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import Arrays, Inputs, Op, like_first
from cpuconv.graph.ops.views import blockable
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import BLOCKED, CHANNELS_LAST, DENSE, FLOAT32, NARROW, STRIDED
from cpuconv.kernels.elementwise.converting import converted


def copied(node: Node, arrays: Arrays) -> np.ndarray:
    """Return the input."""
    return arrays[0]


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    x = inputs[0]
    if 0 in x.shape:
        return []
    plain = (DENSE, CHANNELS_LAST, BLOCKED) if blockable(x) else (DENSE,)
    goals = [form for each in plain for form in target.forms(each, x.dtype)]
    if target.stored_parts and len(plain) > 1 and x.dtype == FLOAT32:
        goals.append(NARROW[target.stored_parts][BLOCKED])
    sources = [*goals, *target.forms(STRIDED, x.dtype)]
    seconds = target.moving(2 * x.nbytes)
    return [Offer((source,), (goal,), seconds) for source in sources for goal in goals if source != goal]


def _lower(call: Call) -> list[Step]:
    return converted(call.target, call.space, call.x, call.y)


_SIGNATURE = "x: any (S...) -> y: =x (S...)"
OPS = (Op("Copy", like_first, copied, widened=False, offers=_offers, lower=_lower, signature=_SIGNATURE, own=True),)
