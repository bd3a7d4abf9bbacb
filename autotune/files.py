"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_whole(files: Mapping[Path, str | bytes]) -> None:
    """Write texts, or bytes, to files: all of them are complete on disk before the first one takes its name.

    They have the permissions of any new file.

    Raises
    ------
    OSError
        A file cannot be written; none has been replaced unless the renaming itself failed.
    """
    mask = os.umask(0)
    os.umask(mask)
    with contextlib.ExitStack() as leftovers:
        renames = []
        for path, content in files.items():
            handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
            leftovers.callback(Path(name).unlink, missing_ok=True)
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.chmod(name, 0o666 & ~mask)
            renames.append((name, path))
        for name, path in renames:
            os.replace(name, path)
