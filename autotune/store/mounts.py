"""Detection of remote file systems, by the mount table: machines do not share memory-mapped files."""

from __future__ import annotations

import re
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")  # Linux only; on other systems all files count as local
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
FUSE = "fuse"  # type prefix of file systems in user space, whose storage is mostly unknown
LOCAL_FUSE = frozenset(["fuseblk", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.ntfs", "fuse.ntfs-3g"])
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def is_remote(path: Path) -> bool:
    """Whether the file is, or would be, on a file system that other machines write to."""
    place = path.absolute()
    if place.drive.startswith("\\\\"):  # a Windows share
        return True
    kind = _kind(place)
    return kind in REMOTE or (kind.startswith(FUSE) and kind not in LOCAL_FUSE)


def _kind(place: Path) -> str:
    """Return the type of the file system of a path; empty if unknown."""
    try:
        table = TABLE.read_bytes()
        place = place.resolve()
    except (OSError, RuntimeError):  # no table, or a loop of links
        return ""
    mounts: dict[Path, str] = {}
    for line in table.splitlines():
        before, _, after = line.partition(b" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) > 4 and kinds:
            mounts[Path(_unescaped(fields[4]))] = kinds[0].decode(errors="replace")  # later mounts hide earlier ones
    return next((mounts[each] for each in (place, *place.parents) if each in mounts), "")


def _unescaped(text: bytes) -> str:
    """Decode a path of the table, in which spaces and other special characters are octal escapes."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 255]), text).decode(errors="surrogateescape")
