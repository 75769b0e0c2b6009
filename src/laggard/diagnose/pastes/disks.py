"""The format `df`: file systems that are full, by bytes or by inodes (`df -i`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(
    r"^Filesystem\b.{1,80}(?:Use|Used|Capacity|IUse|%IUsed)%?.{0,40}\bMounted on\s*$", re.MULTILINE
)
_ROW: Final = re.compile(
    r"^(\S.{0,300}?)??[ \t]+([\d.,]+[BKMGTPEkbi]{0,3})[ \t]+([\d.,]+[BKMGTPEkbi]{0,3})"
    r"[ \t]+(-?[\d.,]+[BKMGTPEkbi]{0,3})[ \t]+(\d{1,3})%[ \t]+(/\S{0,300})[ \t]*$"
)
_IMAGE: Final = re.compile(
    r"^(?:/dev/(?:loop|sr)\d|squashfs|fuse\.squash|\S+\.(?:sif|squashfs|iso)\b)|^(?:cvmfs2|iso9660)"
)
_NOT_OF_JOBS: Final = re.compile(
    r"^(?:/snap/|/var/lib/snapd/|/sys/|/media/|/cdrom|/boot|/cvmfs|/run/(?!user)|/mnt/iso)"
)
MIN_WARNED_PERCENT: Final = 97
"""The share in use from which on a file system is nearly full."""
MAX_FINDINGS: Final = 16


class _Row(NamedTuple):
    device: str
    size: str
    available: str
    percent: int
    mount: str
    inodes: bool


def read(section: Section) -> Iterator[Finding | Fact]:
    rows = [row for row in _rows(section.text) if not _IMAGE.match(row.device) and not _NOT_OF_JOBS.match(row.mount)]
    yield Fact("fullest", {row.mount: f"{row.percent}%" for row in sorted(rows, key=lambda row: -row.percent)[:4]})
    full = [row for row in rows if row.percent >= MIN_WARNED_PERCENT]
    for row in full[:MAX_FINDINGS]:
        yield _finding(row)


def _rows(text: str) -> Iterator[_Row]:
    inodes = in_table = False
    name = ""
    for line in text.split("\n")[:4096]:
        if _HEAD.match(line):
            in_table, inodes = True, "nodes" in line
        elif in_table and (match := _ROW.fullmatch(line)):
            yield _Row((match[1] or name).strip(), match[2], match[4], int(match[5]), match[6], inodes)
        name = line.strip()  # df of old breaks the line after a long name


def _finding(row: _Row) -> Finding:
    is_full = row.percent >= 100 or row.available.rstrip("BKMGTPEkbi") in ("0", "0.0")
    what = "inodes" if row.inodes else "bytes"
    left = "no inode left (too many files)" if row.inodes else f"no room left: {row.percent}% of {row.size} are in use"
    summary = f"has {left}" if is_full else f"is nearly full: {row.percent}% of its {what}"
    return finding(
        "DISK_FULL",
        row.mount,
        summary,
        severity=Severity.CRITICAL if is_full else Severity.WARNING,
        evidence={"filesystem": row.device, "size": row.size, "available": row.available, "percent": row.percent},
        fix=_fix(row),
        commands=(f"df -h {row.mount}", f"df -i {row.mount}", f"du -xh {row.mount} | sort -h | tail"),
    )


def _fix(row: _Row) -> str:
    if row.mount == "/dev/shm":
        return (
            "Remove what dead jobs left in shared memory (/dev/shm), or enlarge it: `--shm-size` for Docker, an "
            "emptyDir with medium Memory for Kubernetes."
        )
    if row.inodes:
        return "Remove or pack small files (caches, old checkpoints, data sets of single files)."
    return "Remove what is not needed: images and layers of containers, logs, core dumps, old checkpoints, caches."


DISKS: Final = paste_format("df", _HEAD, read)
