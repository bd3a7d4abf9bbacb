"""Files of the kernels' folder: written whole and renamed into place, under a checksum, and read back if they are ours.

What others could have written is not read (`runtime.ownership`): what is kept here is run, or decides what is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from cpuconv.runtime.code import ownership

PART = ".part"  # ends the name of a file that is being written
_DIGEST = hashlib.sha256().digest_size
_OWNERS = stat.S_IRUSR | stat.S_IWUSR
_READABLE = stat.S_IRGRP | stat.S_IROTH


def read(path: Path) -> bytes | None:
    """What `write` has written; None of a file that is missing or damaged, or that others may write to."""
    try:
        with path.open("rb") as file:
            if not ownership.is_ours(os.fstat(file.fileno())):
                return None  # of the time when others could write here
            content = file.read()
    except OSError:
        return None
    return body_of(content)


def body_of(content: bytes) -> bytes | None:
    """What was written, of a file's content; None if it is damaged."""
    digest, body = content[:_DIGEST], content[_DIGEST:]
    return body if hashlib.sha256(body).digest() == digest else None


def content_of(body: bytes) -> bytes:
    """The content of a file that holds this."""
    return hashlib.sha256(body).digest() + body


def write(path: Path, body: bytes) -> None:
    """Write a file whole or not at all; who may read the folder may read it.

    Raises
    ------
    OSError
        It cannot be written.
    """
    import tempfile  # takes 5 ms, and most processes write nothing

    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content_of(body))
        os.chmod(temporary, _OWNERS | path.parent.stat().st_mode & _READABLE)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
