"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_whole(files: Mapping[Path, str]) -> None:
    """Write texts to files: all of them are complete on disk before the first one takes its name.

    Raises
    ------
    OSError
        A file cannot be written; none has been replaced unless the renaming itself failed.
    """
    mask = os.umask(0)
    os.umask(mask)
    with contextlib.ExitStack() as leftovers:
        renames = []
        for path, text in files.items():
            handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
            leftovers.callback(Path(name).unlink, missing_ok=True)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~mask)
            renames.append((name, path))
        for name, path in renames:
            os.replace(name, path)
