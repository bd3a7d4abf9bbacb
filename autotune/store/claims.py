"""Claims of problems: several warmups may share a store, and none begins a problem that another is tuning.

A claim is a lock on a file next to the store. The system releases it when its process ends, on any machine or in any
container. The empty files are removed after a week: removing a file that another process is about to lock would let two
processes get the claim.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock


LEFT_SECONDS = 7 * 24 * 3600.0


class Claims:
    """The claims of one store object, by (device, problem, weights)."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(f"{store.name}.claims")
        self._held: dict[tuple[str, ...], BaseFileLock] = {}
        self._is_pruned = False

    def claim(self, *key: str) -> bool:
        """Take a claim, or keep it; return False if another process has it.

        If files cannot be locked, every claim is granted: at worst, two warmups tune a problem twice.
        """
        from filelock import FileLock, Timeout  # the import takes 0.1 s, and inference makes no claims

        if key in self._held:
            return True
        name = hashlib.sha256("\n".join(key).encode()).hexdigest()[:32]
        lock = FileLock(self._folder / f"{name}.lock", thread_local=False)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._prune()
            lock.acquire(timeout=0)
        except Timeout:
            return False
        except (OSError, NotImplementedError):
            return True
        with contextlib.suppress(OSError):
            os.utime(lock.lock_file)
        self._held[key] = lock
        return True

    def release(self, *key: str) -> None:
        """Release a claim, if this store has it."""
        if (lock := self._held.pop(key, None)) is not None:
            lock.release()

    def _prune(self) -> None:
        """Remove, once, the files of claims that are free and were not taken for a week."""
        if self._is_pruned:
            return
        self._is_pruned = True
        from filelock import FileLock, Timeout

        for path in self._folder.glob("*.lock"):
            with contextlib.suppress(OSError, NotImplementedError, Timeout):
                if path.stat().st_mtime < time.time() - LEFT_SECONDS:
                    with FileLock(path, timeout=0):
                        os.unlink(path)
