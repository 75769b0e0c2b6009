"""Writes a rank file, from its creation to its close."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from laggard.rankfile import layout


class RankFileWriter:
    """Creates one rank file and holds the lock that shows readers that this process lives.

    The lock is a POSIX record lock: forked children do not inherit it, the kernel gives a reader the holder's process
    id, and the lock goes with the process however that ends. (A process that opens and closes its own rank file a
    second time drops the lock, so readers belong in other processes.)

    `words` are the live words; the hot path stores into them directly.

    Raises OSError where the directory cannot be created or written, or its file system is full; ValueError where the
    identity is too long.
    """

    def __init__(self, directory: str, identity: Mapping[str, Any]) -> None:
        os.makedirs(directory, exist_ok=True)
        layout.prune(directory)
        self.path = os.path.join(directory, f"{os.getpid()}-{os.urandom(8).hex()}{layout.SUFFIX}")
        hidden = self.path + ".new"  # readers list only names with the suffix: they never see an unfinished file
        self._fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, layout.FILE_BYTES)
            self._map = mmap.mmap(self._fd, layout.FILE_BYTES)
            self._write_header(identity)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Readable whatever the umask, because the agent runs as another user. Only now: a read lock of another
            # user, taken before this process has its own lock, would keep that lock off.
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
            raise ValueError(f"the rank's identity has {len(text)} bytes; there is room for {layout.IDENTITY_BYTES}")
        head = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 0, layout.FILE_BYTES, len(text), zlib.crc32(text))
        self._map[: len(head)] = head
        self._map[layout.IDENTITY_OFFSET : layout.IDENTITY_OFFSET + len(text)] = text

    def add_lane(self, lane: layout.Lane) -> int | None:
        """Adds a lane and returns its index; None where the table is full."""
        index = self._lanes
        if index >= layout.LANE_COUNT:
            return None
        op, role, group = (_clip(text, size) for text, size in zip(lane[:3], (16, 16, layout.GROUP_BYTES), strict=True))
        body = layout.LANE.pack(op, role, group, lane.peer, 0)[: layout.LANE_BODY]
        cell = body + zlib.crc32(body, index + 1).to_bytes(4, "little")
        offset = layout.LANES_OFFSET + index * layout.LANE.size
        self._map[offset : offset + layout.LANE.size] = cell
        self._lanes = index + 1
        return index

    def write_counters(self, fixed: Sequence[int], lanes: Sequence[int]) -> None:
        """Writes the counters. `fixed`: the fields of RankCounters before its lanes, flattened; `lanes`: count, time
        and bytes of each lane, flattened."""
        self._counters += 1
        cell = layout.pack_cell(
            self._counters, struct.pack(f"<q{len(fixed)}q{len(lanes)}q", len(lanes) // 3, *fixed, *lanes)
        )
        offset = layout.COUNTERS_OFFSET + (self._counters & 1) * layout.COUNTERS_BYTES
        self._map[offset : offset + len(cell)] = cell

    def write_step(self, *values: int) -> None:
        """Writes a step. `values`: step, start, end, the phases in the order of constants.PHASES, waited, work."""
        self._steps += 1
        cell = layout.pack_cell(self._steps, layout.STEP_BODY.pack(*values))
        offset = layout.STEPS_OFFSET + (self._steps % layout.STEP_COUNT) * layout.STEP_SLOT
        self._map[offset : offset + len(cell)] = cell
        self.words[layout.WORD_STEP_CELLS] = self._steps

    def write_collectives(self, step: int, records: Sequence[int]) -> None:
        """Writes a block of collectives of one step. `records`: five numbers for each, as layout.RECORD; at most
        RECORDS_PER_BLOCK of them."""
        self._blocks += 1
        count = len(records)
        cell = layout.pack_cell(self._blocks, struct.pack(f"<qI4x{count}q", step, count // 5, *records))
        offset = layout.BLOCKS_OFFSET + (self._blocks % layout.BLOCK_COUNT) * layout.BLOCK_SLOT
        self._map[offset : offset + len(cell)] = cell

    def write_beat(self, beat: layout.BeatRecord) -> None:
        """Writes a heartbeat. May run on another thread than the methods above: they write other parts of the file."""
        os.utime(self._fd)  # in memory a mapped file keeps the time of its first pages
        lanes, groups = beat.lanes[: layout.LANE_COUNT], beat.groups[: layout.BEAT_GROUPS]
        self._beats += 1
        body = bytearray(
            layout.BEAT_HEAD.pack(
                beat.at_ns, beat.interval_ns, beat.flight_recorder, beat.asked_ns, len(lanes), len(groups)
            )
        )
        for lane in lanes:
            body += layout.BEAT_LANE.pack(*lane)
        for name, *numbers in groups:
            body += layout.BEAT_GROUP.pack(_clip(name, 48), *numbers)
        self._write_alternately(layout.BEATS_OFFSET, layout.BEATS_BYTES, self._beats, bytes(body))

    def write_facts(self, text: bytes) -> None:
        """Writes the facts, on the thread of write_beat(). `text`: a JSON object; raises ValueError where it is longer
        than FACTS_LIMIT bytes."""
        if len(text) > layout.FACTS_LIMIT:
            raise ValueError(f"the facts have {len(text)} bytes; there is room for {layout.FACTS_LIMIT}")
        self._facts += 1
        body = layout.FACTS_HEAD.pack(len(text)) + text
        self._write_alternately(layout.FACTS_OFFSET, layout.FACTS_BYTES, self._facts, body)

    def _write_alternately(self, offset: int, size: int, sequence: int, body: bytes) -> None:
        cell = layout.pack_cell(sequence, body)
        offset += (sequence & 1) * size
        self._map[offset : offset + len(cell)] = cell

    def close(self) -> None:
        """Marks the rank as ended normally and releases the file, which stays for the agent to read."""
        self.words[layout.WORD_STATE] = layout.STATE_FINISHED
        self.words.release()
        with contextlib.suppress(BufferError):  # a view that the hot path still holds: the exit frees it
            self._map.close()
        os.close(self._fd)


def _clip(text: str, size: int) -> bytes:
    return text.encode()[:size].decode(errors="ignore").encode()
