"""The reading side. It copies with pread, checks everything, and believes nothing that it cannot check."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from laggard.rankfile import layout

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_TEXT_LIMIT = 256


class RankFileError(Exception):
    """A file that is not a readable rank file. `reason` is one of a few short phrases, fit for a label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Step(NamedTuple):
    """One step of the rank; times in nanoseconds, `phases` in the order of names.PHASES."""

    step: int
    start: int
    end: int
    phases: tuple[int, ...]
    waited: int


class Collective(NamedTuple):
    """One collective; times in nanoseconds. `end` 0: it had not finished when it was written."""

    step: int
    lane: int
    sequence: int
    issued: int
    end: int
    waited: int
    bytes: int


class RankFileReader:
    """An open rank file. Use as a context manager. Raises RankFileError where the file is not to be believed."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise RankFileError("symlink" if os.path.islink(path) else error.strerror or "unreadable") from None
        try:
            self.owner = self._check_inode()
            self.identity = self._read_identity()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> RankFileReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _check_inode(self) -> int:
        about = os.fstat(self._fd)
        if not stat.S_ISREG(about.st_mode):
            raise RankFileError("not a regular file")
        if about.st_size != layout.FILE_BYTES:
            raise RankFileError("truncated" if about.st_size < layout.FILE_BYTES else "another layout")
        return about.st_uid

    def _pread(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise RankFileError(error.strerror or "unreadable") from None

    def _read_identity(self) -> dict[str, Any]:
        page = self._pread(0, layout.LIVE_OFFSET)
        if len(page) < layout.LIVE_OFFSET:
            raise RankFileError("truncated")
        magic, version, _, size, length, checksum = layout.HEADER.unpack_from(page)
        if magic != layout.MAGIC:
            raise RankFileError("not a rank file")
        if version != layout.VERSION:
            raise RankFileError("another version")
        if size != layout.FILE_BYTES or length > layout.IDENTITY_BYTES:
            raise RankFileError("another layout")
        text = page[layout.IDENTITY_OFFSET : layout.IDENTITY_OFFSET + length]
        if zlib.crc32(text) != checksum:
            raise RankFileError("damaged header")
        return _identity(text)

    def holder(self) -> int | None:
        """Process id of the living writer as the kernel tells it; 0 where it is not visible from this pid namespace;
        None where no process holds the lock: the writer is gone."""
        # Asked as a reader: a shared lock, which anybody may take on a file that is there to be read, is no writer's.
        query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, query))
        return None if kind == fcntl.F_UNLCK else max(pid, 0)

    def words(self) -> tuple[int, ...]:
        data = self._pread(layout.LIVE_OFFSET, 8 * layout.LIVE_WORDS)
        if len(data) < 8 * layout.LIVE_WORDS:  # cut since it was opened
            raise RankFileError("truncated")
        return struct.unpack(f"<{layout.LIVE_WORDS}q", data)

    def finished(self) -> bool:
        """Whether the writer said that it ended as it meant to."""
        return self.words()[layout.WORD_STATE] == layout.STATE_FINISHED

    def in_flight(self) -> InFlight:
        """The collective that the writer is in, if any, and its phase."""
        words, again = self.words(), self.words()
        for _ in range(3):
            if words[: layout.WORD_ISSUED + 1] == again[: layout.WORD_ISSUED + 1]:
                break
            words, again = again, self.words()
        else:  # entering and leaving collectives all the time: in none for long
            return InFlight(None, again[layout.WORD_PHASE], again[layout.WORD_PROGRESS])
        current, issued = words[layout.WORD_CURRENT], words[layout.WORD_ISSUED]
        mark = None
        if issued:
            mark = layout.InFlightMark(current >> layout.LANE_SHIFT, current & layout.SEQUENCE_MASK, issued)
        return InFlight(mark, words[layout.WORD_PHASE], words[layout.WORD_PROGRESS])

    def lanes(self) -> tuple[layout.Lane, ...]:
        data = self._pread(layout.LANES_OFFSET, layout.LANE.size * layout.LANE_COUNT)
        lanes: list[layout.Lane] = []
        for index in range(len(data) // layout.LANE.size):
            offset = index * layout.LANE.size
            op, role, group, peer, checksum = layout.LANE.unpack_from(data, offset)
            if zlib.crc32(data[offset : offset + layout.LANE_BODY], index + 1) != checksum:
                break
            lanes.append(layout.Lane(_text(op), _text(role), _text(group), peer))
        return tuple(lanes)

    def counters(self) -> layout.Counters | None:
        """The newest whole counters; None before the first."""
        cells = (
            self._pread(layout.COUNTERS_OFFSET + index * layout.COUNTERS_BYTES, layout.COUNTERS_BYTES)
            for index in (0, 1)
        )
        whole = [counters for cell in cells if (counters := _counters(cell)) is not None]
        return max(whole, key=lambda found: found[0])[1] if whole else None

    def steps(self, since_ns: int = 0) -> list[Step]:
        """The steps still in the ring that ended at or after `since_ns`, oldest first."""
        newest = self.words()[layout.WORD_STEP_CELLS]
        ring = self._pread(layout.STEPS_OFFSET, layout.STEP_SLOT * layout.STEP_COUNT)
        found: list[Step] = []
        for sequence in range(newest, max(newest - layout.STEP_COUNT, 0), -1):
            offset = (sequence % layout.STEP_COUNT) * layout.STEP_SLOT
            opened = layout.unseal(ring[offset : offset + layout.STEP_SLOT], layout.STEP_BODY.size)
            if opened is None or opened[0] != sequence:
                continue  # torn, or overwritten meanwhile
            step, start, end, *phases, waited = layout.STEP_BODY.unpack(opened[1])
            if end < since_ns:
                break
            found.append(Step(step, start, end, tuple(phases), waited))
        return found[::-1]

    def collectives(self) -> list[Collective]:
        """The collectives still in the ring, in the order in which they were issued."""
        data = self._pread(layout.BLOCKS_OFFSET, layout.BLOCK_SLOT * layout.BLOCK_COUNT)
        blocks = []
        for slot in range(len(data) // layout.BLOCK_SLOT):
            cell = data[slot * layout.BLOCK_SLOT : (slot + 1) * layout.BLOCK_SLOT]
            _, count = layout.BLOCK_HEAD.unpack_from(cell, 8)
            if count > layout.RECORDS_PER_BLOCK:
                continue
            opened = layout.unseal(cell, layout.BLOCK_HEAD.size + count * layout.RECORD.size)
            if opened and opened[0] % layout.BLOCK_COUNT == slot:
                blocks.append(opened)
        found = [record for _, body in blocks for record in _records(body)]
        return sorted(found, key=lambda record: record.issued)


class InFlight(NamedTuple):
    mark: layout.InFlightMark | None
    phase: int
    progress_ns: int


def _records(body: bytes) -> Iterator[Collective]:
    step, _ = layout.BLOCK_HEAD.unpack_from(body)
    for word, issued, end, waited, size in layout.RECORD.iter_unpack(body[layout.BLOCK_HEAD.size :]):
        yield Collective(step, word >> layout.LANE_SHIFT, word & layout.SEQUENCE_MASK, issued, end, waited, size)


def _counters(cell: bytes) -> tuple[int, layout.Counters] | None:
    if len(cell) < 16:
        return None
    (lanes,) = struct.unpack_from("<q", cell, 8)
    if not 0 <= lanes <= layout.LANE_COUNT:
        return None
    numbers = 1 + layout.COUNTERS_FIXED + 3 * lanes
    opened = layout.unseal(cell, 8 * numbers)
    if opened is None:
        return None
    _, *values = struct.unpack(f"<{numbers}q", opened[1])
    steps, last_step, step_ns, own_ns, *phases, waited, lost, errors = values[: layout.COUNTERS_FIXED]
    rest = values[layout.COUNTERS_FIXED :]
    triples = tuple((rest[i], rest[i + 1], rest[i + 2]) for i in range(0, len(rest), 3))
    return opened[0], layout.Counters(steps, last_step, step_ns, own_ns, tuple(phases), waited, lost, errors, triples)


_IDENTITY_FIELDS: dict[str, type] = {
    "job_id": str,
    "rank": int,
    "local_rank": int,
    "world_size": int,
    "node": str,
    "attempt": int,
    "wall_ns": int,
    "monotonic_ns": int,
}


def _identity(text: bytes) -> dict[str, Any]:
    identity = None
    with contextlib.suppress(ValueError, RecursionError):
        identity = json.loads(text)
    if not isinstance(identity, dict):
        raise RankFileError("damaged header")
    for field, kind in _IDENTITY_FIELDS.items():
        if type(identity.get(field)) is not kind:
            raise RankFileError("damaged header")
    if not 0 <= identity["rank"] < identity["world_size"] <= 1 << 24:
        raise RankFileError("impossible rank")
    return {key: _printable(value) if isinstance(value, str) else value for key, value in identity.items()}


def _text(field: bytes) -> str:
    return _printable(field.rstrip(b"\0").decode(errors="replace"))


def _printable(text: str) -> str:
    """Bounded, and without control characters: it will stand in labels, pages and terminals."""
    return "".join(character if character.isprintable() else "?" for character in text[:_TEXT_LIMIT])
