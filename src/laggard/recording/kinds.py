"""Recognises what kind of recording a file is, by its first bytes; names count for nothing."""

from __future__ import annotations

import enum
import zlib
from pathlib import Path

from laggard.rankfile.unseen import MARK_KEY
from laggard.recording.lines import head_of
from laggard.stacks.sampled import FAULTS_KEY
from laggard.stacks.sampled import KEY as STACKS_KEY

HEAD_BYTES = 64 << 10
GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PICKLE, _NEWEST_PROTOCOL = 0x80, 5

_FLIGHT_RECORDER_KEYS = (b'"pg_config"', b'"pg_status"', b'"comm_lib_version"', b'"entries"')
_KINETO_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"', b'"deviceProperties"')

_MARK = b'{"' + MARK_KEY.encode() + b'"'
_FIRST_LINES = 8


class Kind(enum.Enum):
    """A kind of recording; the value is what a file of it is called."""

    LINES = "laggard recording"
    FLIGHT_RECORDER = "Flight Recorder dump"
    KINETO = "profiler trace"
    INSPECTOR = "NCCL Inspector log"
    FAULTS = "file of faulthandler's dumps"
    STACKS = "file of a process's stacks"
    MARK = "mark of a process that was not seen"
    INSPECTOR_METRICS = "file of NCCL Inspector's metrics"


_STACKS = {b'{"%b"' % key.encode(): kind for key, kind in ((FAULTS_KEY, Kind.FAULTS), (STACKS_KEY, Kind.STACKS))}


def kind_of(path: Path) -> Kind | None:
    """The kind of recording that the file may be; None where it is no recording. Raises OSError."""
    with open(path, "rb") as file:
        return kind_of_bytes(file.read(HEAD_BYTES))


def kind_of_bytes(data: bytes) -> Kind | None:
    """The same, of the first bytes of a file."""
    head = _unpacked(data)
    if head[:1] == bytes((_PICKLE,)) and head[1:2] <= bytes((_NEWEST_PROTOCOL,)):
        return Kind.FLIGHT_RECORDER
    first_line = head.split(b"\n", 1)[0]
    if head_of(first_line):
        return Kind.LINES
    if first_line.startswith(_MARK):
        return Kind.MARK
    for start, kind in _STACKS.items():
        if first_line.startswith(start):
            return kind
    return _kind_of_others(head)


def _kind_of_others(head: bytes) -> Kind | None:
    """The kind of a file that another program wrote."""
    from laggard.nccl.inspector import INSPECTOR_METRIC, is_inspector_line  # laggard's own recordings need neither

    if INSPECTOR_METRIC.search(head.decode(errors="replace")):
        return Kind.INSPECTOR_METRICS
    if not head.lstrip().startswith(b"{"):
        return None
    if any(key in head for key in _KINETO_KEYS):
        return Kind.KINETO
    if any(is_inspector_line(line) for line in head.decode(errors="replace").split("\n")[:_FIRST_LINES]):
        return Kind.INSPECTOR
    if any(key in head for key in _FLIGHT_RECORDER_KEYS):
        return Kind.FLIGHT_RECORDER
    return None


def _unpacked(head: bytes) -> bytes:
    """The first bytes of a file or, where it is gzip's, of what is in it."""
    if head.startswith(GZIP_MAGIC):
        try:
            head = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
        except zlib.error:
            return b""
    return head.removeprefix(_BYTE_ORDER_MARK)
