"""Reads a rank file: copies with pread, checks everything, and rejects what it cannot check."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from laggard.rankfile import layout

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_MAX_CHARACTERS = 256  # of one text
_MAX_DEPTH = 6  # of the facts
_STEPS_AT_ONCE = 128

T = TypeVar("T")


class RankFileError(Exception):
    """The file is not a rank file, or cannot be read. `reason` is one of a few short phrases, fit for a label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Step(NamedTuple):
    """One step of the rank; times in nanoseconds, `phases` in the order of constants.PHASES. `work`: the elements of
    the model's inputs, 0 where they were not seen."""

    step: int
    start: int
    end: int
    phases: tuple[int, ...]
    waited: int
    work: int = 0


class Collective(NamedTuple):
    """One collective; times in nanoseconds. `end` 0: it had not finished when the record was written."""

    step: int
    lane: int
    sequence: int
    arrival: int
    end: int
    waited: int
    bytes: int


class LiveState(NamedTuple):
    """The activity of the rank at this moment. `phase`: index into constants.PHASES, or -1. `progress_ns`: when the
    rank last entered or left a phase."""

    collective: layout.CollectiveInFlight | None
    phase: int
    progress_ns: int


class RankFileReader:
    """An open rank file, to be used as a context manager. Opening and reading raise RankFileError for a file that
    fails a check. `owner` is the file's user id."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise RankFileError("symlink" if os.path.islink(path) else error.strerror or "unreadable") from None
        try:
            self.owner = self._check_inode()
            self.identity = self._read_header()
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

    def _read_header(self) -> Mapping[str, Any]:
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
        return _identity(text)  # the same for every reader: none changes it

    def lock_holder(self) -> int | None:
        """The writer's process id, from the kernel; 0 where it is not visible from this pid namespace; None where no
        process holds the lock: the writer is gone."""
        # The query is for a read lock: it ignores other read locks, which anybody may take on a readable file.
        query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, query))
        return None if kind == fcntl.F_UNLCK else max(pid, 0)

    def _words(self) -> tuple[int, ...]:
        data = self._pread(layout.LIVE_OFFSET, 8 * layout.LIVE_WORDS)
        if len(data) < 8 * layout.LIVE_WORDS:  # cut since it was unpacked
            raise RankFileError("truncated")
        return struct.unpack(f"<{layout.LIVE_WORDS}q", data)

    def finished(self) -> bool:
        """Whether the writer closed the file: the rank ended normally."""
        return self._words()[layout.WORD_STATE] == layout.STATE_FINISHED

    def left(self) -> bool:
        """Whether the rank left torch.distributed in order, and has not come back to it. Its process may go on."""
        return self._words()[layout.WORD_STATE] == layout.STATE_LEFT

    def live_state(self) -> LiveState:
        """The collective that the rank is in, if any, and its phase."""
        words, again = self._words(), self._words()
        for _ in range(3):
            if words[: layout.WORD_ISSUED + 1] == again[: layout.WORD_ISSUED + 1]:
                break
            words, again = again, self._words()
        else:  # the rank keeps entering and leaving collectives, so it is in none for long
            return LiveState(None, again[layout.WORD_PHASE], again[layout.WORD_PROGRESS])
        current, issued = words[layout.WORD_CURRENT], words[layout.WORD_ISSUED]
        collective = None
        if issued:
            collective = layout.CollectiveInFlight(current >> layout.LANE_SHIFT, current & layout.SEQUENCE_MASK, issued)
        return LiveState(collective, words[layout.WORD_PHASE], words[layout.WORD_PROGRESS])

    def lanes(self) -> tuple[layout.Lane, ...]:
        """The rank's lanes, in the order of their indices."""
        data = self._pread(layout.LANES_OFFSET, layout.LANE.size * layout.LANE_COUNT)
        lanes: list[layout.Lane] = []
        for index in range(len(data) // layout.LANE.size):
            offset = index * layout.LANE.size
            op, role, group, peer, checksum = layout.LANE.unpack_from(data, offset)
            if zlib.crc32(data[offset : offset + layout.LANE_BODY], index + 1) != checksum:
                break
            lanes.append(layout.Lane(_text(op), _text(role), _text(group), peer))
        return tuple(lanes)

    def counters(self) -> layout.RankCounters | None:
        """The newest whole counters; None before the first."""
        return self._newest(layout.COUNTERS_OFFSET, layout.COUNTERS_BYTES, _counters)

    def beat(self) -> layout.BeatRecord | None:
        """The newest whole heartbeat; None before the first."""
        return self._newest(layout.BEATS_OFFSET, layout.BEATS_BYTES, _beat)

    def facts(self) -> dict[str, Any]:
        """The newest whole facts; empty where there are none. Texts are printable; texts and nesting are bounded."""
        return self._newest(layout.FACTS_OFFSET, layout.FACTS_BYTES, _facts) or {}

    def _newest(self, offset: int, size: int, read: Callable[[bytes], tuple[int, T] | None]) -> T | None:
        """The contents of the newer one of two cells that are written alternately."""
        both = self._pread(offset, 2 * size)
        whole = [found for cell in (both[:size], both[size:]) if (found := read(cell)) is not None]
        return max(whole, key=lambda found: found[0])[1] if whole else None

    def steps(self, since_ns: int = 0) -> list[Step]:
        """The steps still in the ring that ended at or after `since_ns`, oldest first."""
        found: list[Step] = []
        for part, newest in self._parts_of_steps():
            for numbers in layout.unpack_steps(part, newest):
                if numbers[2] < since_ns:
                    return found[::-1]
                step, start, end = numbers[:3]
                waited, work = numbers[-2:]
                found.append(Step(step, start, end, numbers[3:-2], waited, work))
        return found[::-1]

    def _parts_of_steps(self) -> Iterator[tuple[bytes, int]]:
        """Reads a part of the ring at a time, newest first: mostly the last few seconds are asked for. Yields cells,
        and the sequence number of the last of them."""
        newest = self._words()[layout.WORD_STEP_CELLS]
        last = max(newest - layout.STEP_COUNT, 0)
        while newest > last:
            slot = newest % layout.STEP_COUNT
            count = min(_STEPS_AT_ONCE, slot + 1, newest - last)
            first = slot - count + 1
            part = self._pread(layout.STEPS_OFFSET + first * layout.STEP_SLOT, count * layout.STEP_SLOT)
            cut = count - len(part) // layout.STEP_SLOT  # cells that were cut off since the file was opened
            yield part, newest - cut
            newest -= count

    def collectives(self) -> list[Collective]:
        """The collectives still in the ring, in order of arrival."""
        data = self._pread(layout.BLOCKS_OFFSET, layout.BLOCK_SLOT * layout.BLOCK_COUNT)
        blocks = []
        for slot in range(len(data) // layout.BLOCK_SLOT):
            cell = data[slot * layout.BLOCK_SLOT : (slot + 1) * layout.BLOCK_SLOT]
            _, count = layout.BLOCK_HEAD.unpack_from(cell, 8)
            if count > layout.RECORDS_PER_BLOCK:
                continue
            unpacked = layout.unpack_cell(cell, layout.BLOCK_HEAD.size + count * layout.RECORD.size)
            if unpacked and unpacked[0] % layout.BLOCK_COUNT == slot:
                blocks.append(unpacked)
        found = [record for _, body in blocks for record in _records(body)]
        return sorted(found, key=lambda record: record.arrival)


def _records(body: bytes) -> Iterator[Collective]:
    step, _ = layout.BLOCK_HEAD.unpack_from(body)
    for word, arrival, end, waited, size in layout.RECORD.iter_unpack(body[layout.BLOCK_HEAD.size :]):
        yield Collective(step, word >> layout.LANE_SHIFT, word & layout.SEQUENCE_MASK, arrival, end, waited, size)


def _counters(cell: bytes) -> tuple[int, layout.RankCounters] | None:
    if len(cell) < 16:
        return None
    (lanes,) = struct.unpack_from("<q", cell, 8)
    if not 0 <= lanes <= layout.LANE_COUNT:
        return None
    numbers = 1 + layout.COUNTERS_FIXED + 3 * lanes
    unpacked = layout.unpack_cell(cell, 8 * numbers)
    if unpacked is None:
        return None
    _, *values = struct.unpack(f"<{numbers}q", unpacked[1])
    steps, last_step, step_ns, own_ns, *phases, waited, lost, errors, work = values[: layout.COUNTERS_FIXED]
    rest = values[layout.COUNTERS_FIXED :]
    triples = tuple((rest[i], rest[i + 1], rest[i + 2]) for i in range(0, len(rest), 3))
    return unpacked[0], layout.RankCounters(
        steps, last_step, step_ns, own_ns, tuple(phases), waited, lost, errors, work, triples
    )


def _beat(cell: bytes) -> tuple[int, layout.BeatRecord] | None:
    if len(cell) < layout.BEATS_BYTES:
        return None
    head = layout.BEAT_HEAD
    *_, lanes, groups = head.unpack_from(cell, 8)
    if not (0 <= lanes <= layout.LANE_COUNT and 0 <= groups <= layout.BEAT_GROUPS):
        return None
    names_at = head.size + lanes * layout.BEAT_LANE.size
    unpacked = layout.unpack_cell(cell, names_at + groups * layout.BEAT_GROUP.size)
    if unpacked is None:
        return None
    sequence, body = unpacked
    at, interval, recorder, asked, *_ = head.unpack_from(body)
    pairs = layout.BEAT_LANE.iter_unpack(body[head.size : names_at])
    group_states = (
        layout.GroupState(_printable(name.rstrip(b"\0").decode(errors="replace")), *numbers)
        for name, *numbers in layout.BEAT_GROUP.iter_unpack(body[names_at:])
    )
    lanes_done = tuple((pair[0], pair[1]) for pair in pairs)
    return sequence, layout.BeatRecord(at, interval, recorder, lanes_done, tuple(group_states), asked)


def _facts(cell: bytes) -> tuple[int, dict[str, Any]] | None:
    if len(cell) < layout.FACTS_BYTES:
        return None
    (length,) = layout.FACTS_HEAD.unpack_from(cell, 8)
    if not 0 <= length <= layout.FACTS_LIMIT:
        return None
    unpacked = layout.unpack_cell(cell, layout.FACTS_HEAD.size + length)
    if unpacked is None:
        return None
    found: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(unpacked[1][layout.FACTS_HEAD.size :], parse_constant=_reject_constant)
    return (unpacked[0], _bounded(found, _MAX_DEPTH)) if isinstance(found, dict) else None


def _reject_constant(name: str) -> None:
    """None in place of NaN and Infinity: they are no JSON, and the agent could not send them on."""


def _bounded(value: Any, depth: int) -> Any:
    """`value` with printable text, without what is nested deeper than `depth`, and without numbers of 2^53 and more,
    which some JSON readers round."""
    if isinstance(value, str):
        return _printable(value)
    if isinstance(value, (dict, list)) and depth == 0:
        return None
    if isinstance(value, dict):
        return {_printable(key): _bounded(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_bounded(inner, depth - 1) for inner in value]
    return value if abs(value or 0) < 1 << 53 else None


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


@functools.lru_cache(128)
def _identity(text: bytes) -> Mapping[str, Any]:
    """Keeps what it found: an agent opens the files of the same ranks again and again."""
    identity = None
    with contextlib.suppress(ValueError, RecursionError):
        identity = json.loads(text)
    if not isinstance(identity, dict):
        raise RankFileError("damaged header")
    for field, expected in _IDENTITY_FIELDS.items():
        if type(identity.get(field)) is not expected:
            raise RankFileError("damaged header")
    if not 0 <= identity["rank"] < identity["world_size"] <= 1 << 24:
        raise RankFileError("impossible rank")
    return {key: _printable(value) if isinstance(value, str) else value for key, value in identity.items()}


@functools.lru_cache(2048)
def _text(field: bytes) -> str:
    return _printable(field.rstrip(b"\0").decode(errors="replace"))


def _printable(text: str) -> str:
    """`text`, bounded and without control characters: it goes into labels, pages and terminals."""
    text = text[:_MAX_CHARACTERS]
    if text.isprintable():  # nearly always
        return text
    return "".join(character if character.isprintable() else "?" for character in text)
