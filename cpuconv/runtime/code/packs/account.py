"""What was compiled on this machine although packs are there, and why."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.packs import serving

_NAMED = re.compile(r"(?:cpuconv-)?(.*)-[0-9a-f]{20}\.o")
_OTHERS = {"-help": "thread-pool"}  # what kernels of other modules than those of `cpuconv.kernels` are called
_TOLD = 5  # kinds of kernels that are named


def account() -> dict[str, str]:
    """In words: the pack that serves, and the kernels that were compiled for this target, which the cache keeps."""
    served = serving.served()
    if served.part is None:
        pack = f"none: {served.why}"
    else:
        pack = f"{served.cpu}, {len(served.part)} kernels in {serving.path()}"
    return {"kernel_pack": pack, "kernels_compiled": _compiled(kernel_files.folder().path, served)}


def _compiled(folder: Path | None, served: serving.Served) -> str:
    names = sorted(path.name for path in folder.glob("*.o")) if folder is not None else []
    if not names:
        return "none are kept"
    packed = [name for name in names if served.part is not None and name.removesuffix(".o") in served.part]
    kinds = Counter(_kind(found[1]) for name in names if (found := _NAMED.fullmatch(name)) and name not in packed)
    told = [f"{count} of {kind}" for kind, count in kinds.most_common(_TOLD)]
    told += [f"{len(kinds) - _TOLD} more kinds"] if len(kinds) > _TOLD else []
    reasons = []
    if kinds:
        why = "as no pack serves" if served.part is None else "as the pack lacks them"
        reasons.append(f"{sum(kinds.values())} {why} ({', '.join(told)})")
    if packed:
        reasons.append(f"{len(packed)} before the pack served")
    return f"{len(names)}: {'; '.join(reasons)}"


def _kind(name: str) -> str:
    """What kernels of a module are called."""
    return _OTHERS.get(name, name.removeprefix("kernels-"))
