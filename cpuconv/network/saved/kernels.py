"""Machine code in a saved model: the kernels of its programs, in a pack of one part, for CPUs like this one.

It is code that runs, so it is used only where a caller says that the file is trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cpuconv.isa import current
from cpuconv.network.saved.container import checksum_kernels
from cpuconv.network.saved.encoding import must_be
from cpuconv.runtime.code import cache
from cpuconv.runtime.code.packs import pack_file, serving
from cpuconv.runtime.code.packs.pack_file import Damaged, Part
from cpuconv.runtime.target import target

_PART = "kernels"


def packed(names: Iterable[str]) -> np.ndarray:
    """The kernels of these names, and those that read a file, as the bytes of a pack.

    Left out are kernels that are not kept, as where there is no cache folder.
    """
    from cpuconv.runtime.code.packs import packing  # which is not needed to load

    bodies = {name: cache.body_of(name) for name in {*names, *checksum_kernels()}}
    found = {name: body for name, body in bodies.items() if body is not None}
    return np.frombuffer(packing.packed({_PART: found}), np.uint8)


def here() -> dict[str, Any]:
    """What machine code is good for: the architecture and system, the instruction set, and the CPU's features."""
    triple, _, features = target()
    there = sorted(each[1:] for each in features.split(",") if each.startswith("+"))
    return {"triple": triple, "isa": current().name, "features": there}


def fits(made: Any) -> bool:
    """Whether code that was made for such a CPU runs here: for this one, or one that has no other features."""
    own, made = here(), must_be(dict, made)
    same = all(made.get(name) == own[name] for name in ("triple", "isa"))
    features = must_be(list, made.get("features"))
    return same and bool(features) and {*map(str, features)} <= {*own["features"]}


def trusted(content: np.ndarray) -> Part | None:
    """Let the kernels serve as long as the result is kept; None of what is damaged."""
    try:
        part = pack_file.of_bytes(content.tobytes()).part(_PART)
    except Damaged:
        return None
    serving.trust(part)
    return part
