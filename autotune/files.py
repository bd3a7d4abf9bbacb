"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_whole(files: Mapping[Path, str | bytes | Iterable[Any]]) -> None:
    """Write texts, bytes, or what holds bytes one after the other, to files.

    All of them are complete on disk before the first one takes its name.

    The files have the permissions of any new file.

    Raises
    ------
    OSError
        A file cannot be written; none has been replaced unless the renaming itself failed.
    """
    import tempfile  # takes 5 ms, and most processes write nothing

    mask = os.umask(0)
    os.umask(mask)
    with contextlib.ExitStack() as leftovers:
        renames = []
        for path, content in files.items():
            handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
            leftovers.callback(Path(name).unlink, missing_ok=True)
            with os.fdopen(handle, "wb") as file:
                file.writelines(_parts(content))
            os.chmod(name, 0o666 & ~mask)
            renames.append((name, path))
        for name, path in renames:
            os.replace(name, path)


def _parts(content: str | bytes | Iterable[Any]) -> Iterable[Any]:
    if isinstance(content, str):
        return [content.encode()]
    return [content] if isinstance(content, bytes) else content
