"""Where the tests of a session, and the processes that they start, keep what they compile and store.

Stores last as long as the session. Kernels are kept in the environment that the tests run in (`kept`), stamped as ever,
so that the next session does not compile them again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

CACHE = Path(tempfile.mkdtemp(prefix="cpuconv-tests-"))


def link(folder: Path | None) -> None:
    """Have kernels of the session's cache be in that folder."""
    if folder is None:
        return
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    (CACHE / "kernels").symlink_to(folder / "kernels", target_is_directory=True)
