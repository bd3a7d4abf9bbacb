"""The syntax of source files, each parsed once on a machine: to parse all of them at every start takes 0.2 seconds.

What is known of a file is kept under a hash of its text and of the rules (`runtime.syntax`), so that neither clocks,
nor where the file lies, nor several versions side by side matter. A file of the package, beside its kernel packs, holds
what is known of its own sources: where nothing is kept yet, nothing is parsed either. It also goes by the hashes that a
RECORD has of the sources, so that their syntax is known where they are not installed.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from autotune import ownership
from autotune.files import read_regular, write_whole
from autotune.paths import cache_folder
from cpuconv import origin
from cpuconv.runtime.code import checked_file
from cpuconv.runtime.code.sources import syntax
from cpuconv.runtime.code.sources.syntax import Import, Syntax, parse

NAME = "sources"
MOST = 300  # files that are remembered: a few versions of the package
MOST_BYTES = 1 << 23  # of the file that they are kept in: ten times what these take
_RECORDED = "sha256="  # how hashes begin in a RECORD
SHIPPED = origin.ROOT / "packs" / NAME


def syntaxes(sources: Iterable[bytes]) -> list[Syntax]:
    """The syntax of each source, which is kept for the next process where that is possible."""
    keyed = [(_key(source), source) for source in sources]
    path = kept_path()
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


def kept_path() -> Path | None:
    """The file that they are kept in; None where others may write, or nothing can be written."""
    try:
        kernels = cache_folder() / "kernels"
        fault = ownership.claim(kernels.parent, kernels)
    except OSError:
        return None
    return kernels / NAME if fault is None else None


def read(path: Path | None) -> dict[str, Syntax]:
    return _told(checked_file.read(path, MOST_BYTES) if path else None)


def shipped() -> dict[str, Syntax]:
    """What the package's own file says, which is trusted as its code is."""
    try:
        return _told(checked_file.body_of(read_regular(SHIPPED, MOST_BYTES)))
    except OSError:
        return {}


def ship(sources: Iterable[bytes], path: Path) -> None:
    """Write such a file, of these sources.

    Raises
    ------
    OSError
    """
    known = {key: parse(source) for source in sources for key in (_key(source), recorded_key(source))}
    write_whole({path: checked_file.content_of(_text(known))})


def recorded_key(source: bytes) -> str:
    """What the RECORD of an installed package calls a file of this content."""
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
        return {}  # of another version


def _text(known: dict[str, Syntax]) -> bytes:
    return json.dumps({key: [found.content, *map(" ".join, found.imports)] for key, found in known.items()}).encode()


def _write(path: Path | None, known: dict[str, Syntax]) -> None:
    """Keep the first `MOST`."""
    if path is None:
        return
    with contextlib.suppress(OSError):  # then the next process parses again
        checked_file.write(path, _text(dict([*known.items()][:MOST])))
