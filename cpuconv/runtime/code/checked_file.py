"""Files of the kernels' folder: written whole and renamed into place, under a checksum, and read back if they are ours.

What others could have written is not read (`autotune.ownership`): what is kept here is run, or decides what is run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from autotune.files import private_mode, read_regular, write_whole

MOST_BYTES = 1 << 26  # of a kernel; the largest takes some 300 KB
_DIGEST = hashlib.sha256().digest_size


def read(path: Path, most_bytes: int = MOST_BYTES) -> bytes | None:
    """What `write` has written; None of a file that is missing, damaged or larger, or that others may write to."""
    try:
        return body_of(read_regular(path, most_bytes, cached=True))
    except OSError:
        return None


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
    write_whole({path: content_of(body)}, mode=private_mode(path.parent), durable=False)
