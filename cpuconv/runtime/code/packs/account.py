"""Report of the kernels that were compiled on this machine despite kernel packs, with reasons."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.packs import serving

_NAMED = re.compile(r"(?:cpuconv-)?(.*)-[0-9a-f]{20}\.o")
_OTHERS = {"-help": "thread-pool"}  # names for kernels of modules outside `cpuconv.kernels`
_TOLD = 5  # max. kinds of kernels that are listed


def account() -> dict[str, str]:
    """Describe in words the active pack, and the compiled kernels of this target in the cache folder."""
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
    """Return the display name for kernels of a module."""
    return _OTHERS.get(name, name.removeprefix("kernels-"))
