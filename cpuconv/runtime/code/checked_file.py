"""Files of the kernel folder: written atomically with a checksum, and verified when read.

Files that others could have written are not read (`baselib.ownership`), as the content is executed or selects what is.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from baselib.files import private_mode, read_regular, write_whole

MAX_BYTES = 1 << 26  # max. size of a kernel file; the largest has about 300 KB
_DIGEST = hashlib.sha256().digest_size


def read(path: Path, most_bytes: int = MAX_BYTES) -> bytes | None:
    """Read what `write` wrote; None if the file is missing, damaged, too large, or writable by others."""
    try:
        return body_of(read_regular(path, most_bytes, cached=True))
    except OSError:
        return None


def body_of(content: bytes) -> bytes | None:
    """Return the body of a file's content; None if it is damaged."""
    digest, body = content[:_DIGEST], content[_DIGEST:]
    return body if hashlib.sha256(body).digest() == digest else None


def content_of(body: bytes) -> bytes:
    """Return the file content for a body."""
    return hashlib.sha256(body).digest() + body


def write(path: Path, body: bytes) -> None:
    """Write a file atomically; users who may read the folder may read it.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    write_whole({path: content_of(body)}, mode=private_mode(path.parent), durable=False)
