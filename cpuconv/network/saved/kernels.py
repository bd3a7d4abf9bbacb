"""Machine code in a saved model: the kernels of its programs, as a kernel pack of one part, for compatible CPUs.

It is executable code, so it is used only if the caller states that the file is trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cpuconv.isa import current
from cpuconv.network.saved.container import checksum_kernels
from cpuconv.network.saved.encoding import must_be
from cpuconv.runtime.code import cache
from cpuconv.runtime.code.packs import active_pack, pack_file
from cpuconv.runtime.code.packs.pack_file import Damaged, Part
from cpuconv.runtime.target import target

_PART = "kernels"


def packed(names: Iterable[str]) -> np.ndarray:
    """Make a kernel pack of the named kernels and of those that compute checksums, as bytes.

    Kernels that are not stored anywhere, such as without a cache folder, are omitted.
    """
    from cpuconv.runtime.code.packs import packing  # deferred: `load` does not need it

    bodies = {name: cache.body_of(name) for name in {*names, *checksum_kernels()}}
    found = {name: body for name, body in bodies.items() if body is not None}
    return np.frombuffer(packing.packed({_PART: found}), np.uint8)


def here() -> dict[str, Any]:
    """Requirements of machine code: target triple, instruction set, and features of the CPU."""
    triple, _, features = target()
    there = sorted(each[1:] for each in features.split(",") if each.startswith("+"))
    return {"triple": triple, "isa": current().name, "features": there}


def fits(made: Any) -> bool:
    """Whether code with these requirements runs here: all its CPU features are available."""
    own, made = here(), must_be(dict, made)
    same = all(made.get(name) == own[name] for name in ("triple", "isa"))
    features = must_be(list, made.get("features"))
    return same and bool(features) and {*map(str, features)} <= {*own["features"]}


def trusted(content: np.ndarray) -> Part | None:
    """Make the kernels available as long as the result exists; None if they are damaged."""
    try:
        part = pack_file.of_bytes(content.tobytes()).part(_PART)
    except Damaged:
        return None
    active_pack.trust(part)
    return part
