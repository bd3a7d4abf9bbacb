"""Cached syntax of source files: each is parsed once per machine, as parsing all takes 0.2 s per start.

The key of an entry is a hash of the source and of the rules (`runtime.code.sources.syntax`). So file times, paths and
parallel versions of the package do not matter. The package ships such a file with its kernel packs for its own sources,
so a first start parses nothing either. Its entries also have the hashes of a RECORD as keys, so that the syntax is
known where sources are not installed.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from baselib import ownership
from baselib.files import read_regular, write_whole
from baselib.paths import cache_folder
from cpuconv import origin
from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.sources import syntax
from cpuconv.runtime.code.sources.syntax import Import, Syntax, parse

NAME = "sources"
MAX_SOURCES = 300  # max. cached sources: some versions of the package
MAX_BYTES = 1 << 23  # max. size of the cache file: ten times the size of `MAX_SOURCES` entries
_RECORDED = "sha256="  # prefix of hashes in a RECORD
SHIPPED = origin.ROOT / "packs" / NAME


def syntaxes(sources: Iterable[bytes]) -> list[Syntax]:
    """Return the syntax of each source; cache it for the next process if possible."""
    keyed = [(_key(source), source) for source in sources]
    path = cache_path()
    known = read(path)
    if any(key not in known for key, _ in keyed):
        known = {key: found for key, found in shipped().items() if not key.startswith(_RECORDED)} | known
    missing = {key: source for key, source in keyed if key not in known}
    if missing:
        known = {key: parse(source) for key, source in missing.items()} | known
        _write(path, {key: known[key] for key, _ in keyed} | known)
    return [known[key] for key, _ in keyed]


def _key(source: bytes) -> str:
    digest = _rules().copy()
    digest.update(source)
    return digest.hexdigest()


@functools.cache
def _rules() -> hashlib._Hash:
    return hashlib.sha256(Path(syntax.__file__).read_bytes())


def cache_path() -> Path | None:
    """Return the path of the cache file; None where others may write, or nothing can be written."""
    try:
        kernels = cache_folder() / "kernels"
        fault = ownership.claim(kernels.parent, kernels)
    except OSError:
        return None
    return kernels / NAME if fault is None else None


def read(path: Path | None) -> dict[str, Syntax]:
    return _told(checked_file.read(path, MAX_BYTES) if path else None)


def shipped() -> dict[str, Syntax]:
    """Read the package's own file, which is as trusted as its code."""
    try:
        return _told(checked_file.body_of(read_regular(SHIPPED, MAX_BYTES)))
    except OSError:
        return {}


def ship(sources: Iterable[bytes], path: Path) -> None:
    """Write the shipped file for these sources.

    Raises
    ------
    OSError
    """
    known = {key: parse(source) for source in sources for key in (_key(source), recorded_key(source))}
    write_whole({path: checked_file.content_of(_text(known))})


def recorded_key(source: bytes) -> str:
    """Return the hash that a RECORD of an installed package has for this content."""
    return _RECORDED + base64.urlsafe_b64encode(hashlib.sha256(source).digest()).decode().rstrip("=")


def _told(text: bytes | None) -> dict[str, Syntax]:
    if text is None:
        return {}
    try:
        return {
            key: Syntax(content, tuple(Import(*each.split(" ")) for each in imports))
            for key, (content, *imports) in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}  # written by another version


def _text(known: dict[str, Syntax]) -> bytes:
    return json.dumps({key: [found.content, *map(" ".join, found.imports)] for key, found in known.items()}).encode()


def _write(path: Path | None, known: dict[str, Syntax]) -> None:
    """Write the first `MAX_SOURCES` entries."""
    if path is None:
        return
    with contextlib.suppress(OSError):  # the next process parses again
        checked_file.write(path, _text(dict([*known.items()][:MAX_SOURCES])))
