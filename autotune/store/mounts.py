"""Whether a file lies on another machine, by the table of mounts: what one maps into memory the others do not see."""

from __future__ import annotations

import re
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")  # of Linux; elsewhere no file is known to lie on another machine
REMOTE = frozenset(
    # fmt: off
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "drvfs",
        "gfs",
        "gfs2",
        "gpfs",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "prl_fs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
        "wekafs",
    ]
    # fmt: on
)
FUSE = "fuse"  # begins the types of file systems that are programs: of most it is unknown where their files lie
LOCAL_FUSE = frozenset(["fuseblk", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.ntfs", "fuse.ntfs-3g"])
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def is_remote(path: Path) -> bool:
    """Whether the file lies, or would lie, on a file system that other machines write to."""
    place = path.absolute()
    if place.drive.startswith("\\\\"):  # a share of Windows
        return True
    kind = _kind(place)
    return kind in REMOTE or (kind.startswith(FUSE) and kind not in LOCAL_FUSE)


def _kind(place: Path) -> str:
    """The type of the file system that holds a place; empty if that is not known."""
    try:
        table = TABLE.read_bytes()
        place = place.resolve()
    except (OSError, RuntimeError):  # there is no table, or links that lead round
        return ""
    mounts: dict[Path, str] = {}
    for line in table.splitlines():
        before, _, after = line.partition(b" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) > 4 and kinds:
            mounts[Path(_unescaped(fields[4]))] = kinds[0].decode(errors="replace")  # the last one covers the others
    return next((mounts[each] for each in (place, *place.parents) if each in mounts), "")


def _unescaped(text: bytes) -> str:
    """A path of the table, in which spaces and the like stand as octal numbers."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 255]), text).decode(errors="surrogateescape")
