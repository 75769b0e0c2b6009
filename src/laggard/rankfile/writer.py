"""The writing side: one rank's file, from creation to close."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import secrets
import stat
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laggard.rankfile import layout

_PRUNE_AFTER_SECONDS = 600.0  # long enough for any agent to have read a finished rank's last counters


class RankFileWriter:
    """Creates and owns one rank file. Its lock tells readers that this process lives.

    The lock is a POSIX record lock: forked children do not inherit it, the kernel tells a reader who holds it, and
    it goes with the process however that ends. (A process that opens and closes its own rank file a second time
    drops it: readers belong in other processes.)

    Raises OSError where the directory cannot be made or written, or its file system is full.
    """

    def __init__(self, directory: str, identity: Mapping[str, Any]) -> None:
        _make_directory(directory)
        _prune(directory)
        self.path = os.path.join(directory, f"{os.getpid()}-{secrets.token_hex(8)}{layout.SUFFIX}")
        hidden = self.path + ".new"  # readers look for the suffix alone: they never see a file half made
        self._fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, layout.FILE_BYTES)
            self._map = mmap.mmap(self._fd, layout.FILE_BYTES)
            self._write_header(identity)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Readable, whatever the umask, for the agent runs as another user; but not before our own lock is on it,
            # which another user's shared one would keep off.
            os.fchmod(self._fd, 0o644)
            self.words = memoryview(self._map)[layout.LIVE_OFFSET : layout.LIVE_OFFSET + 8 * layout.LIVE_WORDS].cast(
                "q"
            )
            self.words[layout.WORD_PHASE] = -1
            self.words[layout.WORD_STATE] = layout.STATE_RUNNING
            os.rename(hidden, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(hidden)
            os.close(self._fd)
            raise
        self._lanes = 0
        self._counters = 0
        self._steps = 0
        self._blocks = 0
        self._beats = 0
        self._facts = 0

    def _write_header(self, identity: Mapping[str, Any]) -> None:
        text = json.dumps(dict(identity)).encode()
        if len(text) > layout.IDENTITY_BYTES:
            raise ValueError(f"the rank's identity takes {len(text)} bytes, {layout.IDENTITY_BYTES} are there")
        head = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 0, layout.FILE_BYTES, len(text), zlib.crc32(text))
        self._map[: len(head)] = head
        self._map[layout.IDENTITY_OFFSET : layout.IDENTITY_OFFSET + len(text)] = text

    def add_lane(self, lane: layout.Lane) -> int | None:
        """The lane's index, or None where the table is full."""
        index = self._lanes
        if index >= layout.LANE_COUNT:
            return None
        op, role, group = (_clip(text, size) for text, size in zip(lane[:3], (16, 16, 88), strict=True))
        body = layout.LANE.pack(op, role, group, lane.peer, 0)[: layout.LANE_BODY]
        cell = body + zlib.crc32(body, index + 1).to_bytes(4, "little")
        offset = layout.LANES_OFFSET + index * layout.LANE.size
        self._map[offset : offset + layout.LANE.size] = cell
        self._lanes = index + 1
        return index

    def write_counters(self, fixed: Sequence[int], lanes: Sequence[int]) -> None:
        """`fixed`: the fields of Counters up to its lanes, flattened; `lanes`: count, time, bytes, count, ..."""
        self._counters += 1
        cell = layout.seal(
            self._counters, struct.pack(f"<q{len(fixed)}q{len(lanes)}q", len(lanes) // 3, *fixed, *lanes)
        )
        offset = layout.COUNTERS_OFFSET + (self._counters & 1) * layout.COUNTERS_BYTES
        self._map[offset : offset + len(cell)] = cell

    def write_step(self, *values: int) -> None:
        """step, start, end, five phases, waited."""
        self._steps += 1
        cell = layout.seal(self._steps, layout.STEP_BODY.pack(*values))
        offset = layout.STEPS_OFFSET + (self._steps % layout.STEP_COUNT) * layout.STEP_SLOT
        self._map[offset : offset + len(cell)] = cell
        self.words[layout.WORD_STEP_CELLS] = self._steps

    def write_collectives(self, step: int, records: Sequence[int]) -> None:
        """`records`: five numbers each, as layout.RECORD; at most RECORDS_PER_BLOCK of them."""
        self._blocks += 1
        count = len(records)
        cell = layout.seal(self._blocks, struct.pack(f"<qI4x{count}q", step, count // 5, *records))
        offset = layout.BLOCKS_OFFSET + (self._blocks % layout.BLOCK_COUNT) * layout.BLOCK_SLOT
        self._map[offset : offset + len(cell)] = cell

    def write_beat(self, beat: layout.Beat) -> None:
        """From any one thread: no other part of the file is touched."""
        lanes, groups = beat.lanes[: layout.LANE_COUNT], beat.groups[: layout.BEAT_GROUPS]
        self._beats += 1
        body = bytearray(
            layout.BEAT_HEAD.pack(beat.at_ns, beat.interval_ns, beat.flight_recorder, len(lanes), len(groups))
        )
        for lane in lanes:
            body += layout.BEAT_LANE.pack(*lane)
        for name, *numbers in groups:
            body += layout.BEAT_GROUP.pack(_clip(name, 48), *numbers)
        self._put_in_turn(layout.BEATS_OFFSET, layout.BEATS_BYTES, self._beats, bytes(body))

    def write_facts(self, text: bytes) -> None:
        """`text`: a JSON object. Raises ValueError for more than FACTS_LIMIT bytes. From the beats' thread."""
        if len(text) > layout.FACTS_LIMIT:
            raise ValueError(f"the facts take {len(text)} bytes, {layout.FACTS_LIMIT} are there")
        self._facts += 1
        body = layout.FACTS_HEAD.pack(len(text)) + text
        self._put_in_turn(layout.FACTS_OFFSET, layout.FACTS_BYTES, self._facts, body)

    def _put_in_turn(self, offset: int, size: int, sequence: int, body: bytes) -> None:
        cell = layout.seal(sequence, body)
        offset += (sequence & 1) * size
        self._map[offset : offset + len(cell)] = cell

    def close(self) -> None:
        """Says that the rank ended as it meant to, and lets go. The file stays for the agent to read."""
        self.words[layout.WORD_STATE] = layout.STATE_FINISHED
        self.words.release()
        with contextlib.suppress(BufferError):  # a view that the hot path still holds: the exit frees it
            self._map.close()
        os.close(self._fd)


def _clip(text: str, size: int) -> bytes:
    return text.encode()[:size].decode(errors="ignore").encode()


def _make_directory(directory: str) -> None:
    """Makes the directory for every user's ranks (as /tmp: sticky), or takes the one that is there."""
    try:
        os.makedirs(directory)
    except FileExistsError:
        return
    os.chmod(directory, 0o1777)


def _prune(directory: str) -> None:
    """Removes this user's files whose writers are long gone: they hold memory."""
    now = time.time()
    for path in Path(directory).glob(f"*{layout.SUFFIX}"):
        with contextlib.suppress(OSError):
            about = path.lstat()
            if about.st_uid != os.geteuid() or not stat.S_ISREG(about.st_mode):
                continue
            if now - about.st_mtime > _PRUNE_AFTER_SECONDS and not _is_locked(path):
                path.unlink()


def _is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
