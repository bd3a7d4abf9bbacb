"""What a wheel ships of the sources that stamps are made from, for processes of this checkout that keep nothing.

Without it each of them parses all these sources, a second that is not about what its test sees.
"""

from __future__ import annotations

import functools

from cpuconv.runtime.code.sources import parsed, stamp
from support.running.caches import CACHE


@functools.cache
def code() -> str:
    """Lines for a process's program, before it compiles."""
    path = CACHE / parsed.NAME
    if not path.exists():
        parsed.ship((file.read_bytes() for file in stamp.files().values()), path)
    return f"""
from pathlib import Path
from {parsed.__package__} import parsed
parsed.SHIPPED = Path({str(path)!r})
"""
