"""Recognises what kind of recording a file is, by its first bytes, and reads laggard's own: JSON lines about steps,
spans and collectives. Names count for nothing.

A line that is no record costs that record: it is counted, and told in `gaps`.
"""

from __future__ import annotations

import enum
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from laggard.kit.processes import state_of
from laggard.kit.words import counted
from laggard.rankfile.unseen import MARK_KEY
from laggard.recording.job import RecordedJob
from laggard.recording.part import Writer
from laggard.recording.records import INVALID, TIMED_KINDS, Head, Record, decode_as, decode_record, why_invalid
from laggard.stacks.sampled import FAULTS_KEY
from laggard.stacks.sampled import KEY as STACKS_KEY

CHUNK_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 20
"""The most bytes of a line. The rank line of a job of 100,000 ranks has some megabytes; a longer line is none of
ours."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: Path, job: RecordedJob) -> bool:
    """Adds the file's records; False where it is no recording. Raises OSError."""
    with open(path, "rb") as file:
        written_at, now = os.fstat(file.fileno()).st_mtime, time.time()
        chunks = _chunks(file)
        lines = next(chunks, [])
        head = head_of(lines[0].removeprefix(BYTE_ORDER_MARK)) if lines else None
        if head is None:
            return False
        writer = Writer(state_of(head.process), now, now - written_at)  # before what it writes last is read
        _FileReader(str(path), job, head, writer).read(lines[1:], chunks)
        return True


def head_of(line: bytes) -> Head | None:
    """The head in a recording's first line; None where it is another line."""
    if b'"laggard_recording"' not in line:
        return None
    try:
        head: Head = decode_as(line, Head)
    except INVALID:
        return None
    return head if head.laggard_recording == 1 else None


def _chunks(file: BinaryIO) -> Iterator[list[bytes]]:
    """The file's lines in lists. The last line of the last list is empty unless the file is cut off in it."""
    rest = b""
    while chunk := file.read(CHUNK_BYTES):
        if len(rest) > MAX_LINE_BYTES:
            rest = b""  # no line of ours: what is left of it is no record
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    yield [rest]


class _FileReader:
    """Adds the lines of one file to a job. `_part` is the part of the file that is read now: another first line in the
    middle begins another part, maybe of another job."""

    def __init__(self, path: str, job: RecordedJob, head: Head, writer: Writer) -> None:
        self._path, self._job = path, job
        self._part = job.begin_part(path, head, writer)
        self._invalid = 0
        self._first_invalid = ""
        self._records = 0

    def read(self, lines: list[bytes], chunks: Iterator[list[bytes]]) -> None:
        number = 2
        cut_off = b""
        following: list[bytes] | None = lines
        while following is not None:
            lines, following = following, next(chunks, None)
            if following is None:
                cut_off = lines.pop() if lines else b""
            self._add_lines(lines, number)
            number += len(lines)
        self._add_last(cut_off, number)
        if self._invalid:
            lost = f"{counted(self._invalid, 'line')} of {self._path}"
            self._job.gaps.append(f"{lost} left out, no records: the first, {self._first_invalid}")

    def _add_last(self, line: bytes, number: int) -> None:
        """The last line, which lacks its line break: the process may have been killed while it wrote it."""
        try:
            decode_record(line)
        except INVALID:
            if line.strip():
                self._job.gaps.append(f"{self._path}:{number} is cut off: the last record is left out")
        else:
            self._add_lines([line], number)

    def _add_lines(self, lines: list[bytes], number: int) -> None:
        try:
            records = [decode_record(line) for line in lines]
        except INVALID:
            records = list(self._valid_records(lines, number))
        timed = [record for record in records if record.kind in TIMED_KINDS and record.rank is not None]
        if len(timed) == len(records):
            self._part.columns.add(timed)
            return
        begun = 0  # of `timed`: those before a line that begins another part belong to the part before
        for place, record in enumerate(records):
            if record.kind in TIMED_KINDS and record.rank is not None:
                begun += 1
            elif b'"laggard_recording"' in lines[place] and (head := head_of(lines[place])):
                self._part.columns.add(timed[:begun])
                timed, begun = timed[begun:], 0
                self._part = self._job.begin_part(self._path, head)
            else:
                self._add_other(record, lines[place], number + place)
        self._part.columns.add(timed)

    def _valid_records(self, lines: list[bytes], number: int) -> Iterator[Record]:
        for place, line in enumerate(lines):
            record = Record()
            if line.strip():
                try:
                    record = decode_record(line)
                except INVALID as error:
                    self._reject(number + place, why_invalid(error))
            yield record

    def _add_other(self, record: Record, line: bytes, number: int) -> None:
        """A record of a kind that is no timed one, or one that lacks its rank; later versions may add kinds."""
        if record.kind in TIMED_KINDS:
            self._reject(number, f"a {record.kind} record lacks its rank")
            return
        try:
            self._part.add(record.kind, line)
        except INVALID as error:
            self._reject(number, why_invalid(error))

    def _reject(self, number: int, reason: str) -> None:
        self._first_invalid = self._first_invalid or f"line {number}: {reason}"
        self._invalid += 1


HEAD_BYTES = 64 << 10
GZIP_MAGIC = b"\x1f\x8b"
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
    return head.removeprefix(BYTE_ORDER_MARK)
