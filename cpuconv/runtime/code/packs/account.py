"""Report of the kernels that were compiled on this machine despite kernel packs, with reasons."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.packs import active_pack

_NAMED = re.compile(r"(?:cpuconv-)?(.*)-[0-9a-f]{20}\.o")
_OTHERS = {"-help": "thread-pool"}  # names for kernels of modules outside `cpuconv.kernels`
_MAX_LISTED = 5  # max. kinds of kernels that are listed


def account() -> dict[str, str]:
    """Describe in words the active pack, and the compiled kernels of this target in the cache folder."""
    pack = active_pack.current()
    text = f"none: {pack.why}"
    if pack.part is not None:
        text = f"{pack.cpu}, {len(pack.part)} kernels in {active_pack.path()}"
    return {"kernel_pack": text, "kernels_compiled": _compiled(kernel_files.folder().path, pack)}


def _compiled(folder: Path | None, pack: active_pack.ActivePack) -> str:
    names = sorted(path.name for path in folder.glob("*.o")) if folder is not None else []
    if not names:
        return "none are cached"
    packed = [name for name in names if pack.part is not None and name.removesuffix(".o") in pack.part]
    kinds = Counter(_kind(found[1]) for name in names if (found := _NAMED.fullmatch(name)) and name not in packed)
    listed = [f"{count} of {kind}" for kind, count in kinds.most_common(_MAX_LISTED)]
    listed += [f"{len(kinds) - _MAX_LISTED} more kinds"] if len(kinds) > _MAX_LISTED else []
    reasons = []
    if kinds:
        why = "as no pack fits" if pack.part is None else "as the pack lacks them"
        reasons.append(f"{sum(kinds.values())} {why} ({', '.join(listed)})")
    if packed:
        reasons.append(f"{len(packed)} before the pack was used")
    return f"{len(names)}: {'; '.join(reasons)}"


def _kind(name: str) -> str:
    """Return the display name for kernels of a module."""
    return _OTHERS.get(name, name.removeprefix("kernels-"))
