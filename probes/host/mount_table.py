"""The mounts of a machine: which are its own disks or memory, and which are network file systems."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from laggard.probes.errors import Unknown, if_present, or_none
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import FIRST_USER

_MOUNTS = "/proc/self/mounts"
_OF_INIT = "/proc/1/mounts"
_MOUNTINFO = "/proc/self/mountinfo"

_OF_CONTAINERS: Final = frozenset(("/etc/hosts", "/etc/resolv.conf"))
_EMPTY_DIR: Final = "/volumes/kubernetes.io~empty-dir/"

_LOCAL = "bcachefs btrfs ext2 ext3 ext4 f2fs fuse.fuse-overlayfs jfs nilfs2 ntfs3 overlay reiserfs tmpfs xfs zfs"
_REMOTE = (
    "9p afs beegfs ceph cifs fhgfs glusterfs gpfs lustre ncpfs nfs nfs4 orangefs panfs pvfs2 smb3 smbfs virtiofs wekafs"
)

LOCAL_TYPES: Final = frozenset(_LOCAL.split())
"""File system types whose statvfs is answered from this machine's memory and disks. Other types are not asked: statvfs
of a network or FUSE file system hangs with its server, and statvfs of an automount point mounts it."""

REMOTE_TYPES: Final = frozenset(_REMOTE.split())


class Mount(msgspec.Struct, frozen=True):
    point: str
    fstype: str
    writable: bool
    source: str = ""
    """The server and its export, as /proc/self/mounts names them."""
    of_user: bool = False
    """True where a user other than root has mounted it, as FUSE lets everybody do."""
    options: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        return self.point, self.fstype, self.source

    @property
    def shut_down(self) -> bool:
        """Whether the file system failed, and refuses all writing (fs/ext4/super.c, _ext4_show_options)."""
        return "shutdown" in self.options or "emergency_ro" in self.options

    @property
    def servers(self) -> tuple[str, ...]:
        """The hosts in a `source` such as `filer:/export`, `//filer/share`, `mon1,mon2:/` or `mds@o2ib:/scratch`."""
        if self.source.startswith("//"):
            return (self.source[2:].split("/")[0],)
        hosts, slash, _ = self.source.partition(":/")
        return tuple(name for part in hosts.split(",") if slash and (name := re.split("[@:]", part)[0]))

    @property
    def local(self) -> bool:
        return self.fstype in LOCAL_TYPES

    @property
    def remote(self) -> bool:
        """A source with a server's name shows network file systems of types that are not listed here. The subtype of
        FUSE's is the program's choice, as none is CVMFS's."""
        of_fuse = f"{self.fstype}.".startswith("fuse.")
        return not self.local and (self.fstype in REMOTE_TYPES or of_fuse or bool(self.servers))


def read_mounts(host: Host, all_of_a_point: bool = False) -> tuple[Mount, ...]:
    """Returns what is mounted, outermost mount points first; where one mount lies on top of another, only the visible
    one, unless `all_of_a_point`. Raises Unknown where the table cannot be read or holds a line that is no mount.

    A service's own table may show all as read-only (systemd's ProtectSystem=): process 1 tells what jobs may write to.
    """
    listed = _table(host, _MOUNTS)
    if not listed:
        raise Unknown(f"{_MOUNTS} is empty")
    if not all(mount.writable for mount in listed):
        outside = {mount.key: mount for mount in or_none(_table, host, _OF_INIT) or () if mount.writable}
        listed = [outside.get(mount.key, mount) for mount in listed]
    mounts = listed if all_of_a_point else {mount.point: mount for mount in listed}.values()
    return tuple(sorted(mounts, key=lambda mount: (len(mount.point), mount.point)))


def _table(host: Host, path: str) -> list[Mount]:
    # A mount point is bytes, not text: one that is not UTF-8 must not hide the others.
    return [_parse(line) for line in host.read_bytes(path).decode(errors="surrogateescape").splitlines()]


def in_container(mounts: Iterable[Mount]) -> bool:
    """Returns whether these are the mounts of a container: each runtime mounts files of its own there (containerd,
    CRI-O, Docker, Podman, Apptainer). An overlay as the root is no sign, since nodes without a disk have one, too."""
    return _OF_CONTAINERS.issubset(mount.point for mount in mounts)


def read_kubelet_volumes(host: Host) -> frozenset[str]:
    """Returns the mount points that are folders of the kubelet's disk, made for this pod: its emptyDir volumes."""
    return frozenset(unescape(words[4]) for words in _mountinfo(host) if _EMPTY_DIR in words[3])


def read_writable_superblocks(host: Host) -> frozenset[str]:
    """Returns the mount points whose file system is writable by its superblock, however this mount of it is: in a
    service's namespace all mounts are read-only (ProtectSystem=)."""
    return frozenset(unescape(words[4]) for words in _mountinfo(host) if "rw" in words[-1].split(","))


def _mountinfo(host: Host) -> list[list[str]]:
    """The lines of proc_pid_mountinfo(5): the fourth word is the root, the fifth the point, the last the superblock's
    options. None where a recording lacks the file."""
    data = if_present(host.read_bytes, _MOUNTINFO) or b""
    lines = data.decode(errors="surrogateescape").splitlines()
    return [words for line in lines if len(words := line.split(" ")) > 4]


def read_homes(host: Host) -> frozenset[str]:
    """Returns the homes of people in /etc/passwd, and the folders that they are in."""
    fields = (line.split(":") for line in host.text("/etc/passwd").splitlines())
    homes = {words[5] for words in fields if len(words) > 5 and words[2].isdecimal() and int(words[2]) >= FIRST_USER}
    return frozenset(home for home in (*homes, *(path.rpartition("/")[0] for path in homes)) if len(home) > 1)


def printable_path(text: str) -> str:
    """Returns a mount's path or source with bytes that are not UTF-8 escaped, so that it can be encoded."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _parse(line: str) -> Mount:
    words = line.split(" ")
    if len(words) < 4 or not words[1].startswith("/"):
        raise Unknown(f"{_MOUNTS} holds a line that is no mount")
    options = words[3].split(",")
    of_user = any(option.startswith("user_id=") and option != "user_id=0" for option in options)
    return Mount(unescape(words[1]), words[2], "rw" in options, unescape(words[0]), of_user, tuple(options))


def unescape(text: str) -> str:
    """Undoes the kernel's escapes: it writes blanks and backslashes as octal numbers (proc_pid_mounts(5))."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
