"""Where everything stands in a rank file. Little-endian; all times in nanoseconds of CLOCK_MONOTONIC.

    0       header      magic, version, size, then the writer's identity as JSON, written once
    4096    live words  eight-byte words stored without a lock: the collective in flight, the phase, the progress
    8192    lanes       (operation, role, group), each written once, in order
    16384   counters    two cells that are written in turn, so that one is always whole
    32768   steps       ring of step cells
    163840  collectives ring of blocks, each the collectives of one step (or 64 of them)
    499712  beats       two cells that are written in turn, about one a second, by a thread beside the training
    516096  facts       two cells that are written in turn: what the rank knows of itself, as JSON

A cell is `sequence, body, low half of the sequence, CRC-32 of all that`: a reader that meets a cell in the middle of
being written, or one left half-written by a writer that was killed, sees a wrong sum and takes the cell for absent.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

MAGIC: Final = b"LAGGRANK"
VERSION: Final = 2
SUFFIX: Final = ".rank"

HEADER: Final = struct.Struct("<8sIIQII")  # magic, version, reserved, file size, identity length, identity CRC
IDENTITY_OFFSET: Final = 64
IDENTITY_BYTES: Final = 4096 - IDENTITY_OFFSET

LIVE_OFFSET: Final = 4096
LIVE_WORDS: Final = 64
WORD_CURRENT: Final = 0  # lane << LANE_SHIFT | sequence number of the collective last entered
WORD_ISSUED: Final = 1  # when; 0 once it is left. Stored after WORD_CURRENT, so that it never dates another one
WORD_PHASE: Final = 2  # index into names.PHASES, or -1
WORD_PROGRESS: Final = 3  # when the writer last finished a phase
WORD_STATE: Final = 4  # STATE_*
WORD_STEP_CELLS: Final = 5  # step cells written so far: the sequence number of the newest

LANE_SHIFT: Final = 48  # 65,536 lanes, 2.8e14 collectives in each
SEQUENCE_MASK: Final = (1 << LANE_SHIFT) - 1

STATE_RUNNING: Final = 1
STATE_FINISHED: Final = 2

LANES_OFFSET: Final = 8192
LANE: Final = struct.Struct("<16s16s88siI")  # operation, role, group, peer, CRC of all that
LANE_BODY: Final = LANE.size - 4
LANE_COUNT: Final = 64

COUNTERS_OFFSET: Final = 16384
COUNTERS_BYTES: Final = 8192
COUNTERS_FIXED: Final = 12  # the fields of Counters before its lanes, counting five phases as five

STEPS_OFFSET: Final = 32768
STEP_BODY: Final = struct.Struct("<9q")  # step, start, end, five phases, waited
STEP_SLOT: Final = 96
STEP_COUNT: Final = 1365  # the steps' 128 KiB

BLOCKS_OFFSET: Final = 163840
BLOCK_HEAD: Final = struct.Struct("<qI4x")  # step, number of records
RECORD: Final = struct.Struct("<5q")  # lane and sequence, arrival, end (0: not yet), waited, bytes
RECORDS_PER_BLOCK: Final = 64
BLOCK_SLOT: Final = 2624  # sequence 8 + head 16 + 64 records of 40 + trailer 8, and room
BLOCK_COUNT: Final = 128

BEATS_OFFSET: Final = BLOCKS_OFFSET + BLOCK_SLOT * BLOCK_COUNT
BEATS_BYTES: Final = 8192
BEAT_HEAD: Final = struct.Struct("<5q")  # when, interval, Flight Recorder's state, number of lanes, of groups
BEAT_LANE: Final = struct.Struct("<2q")  # collectives of the lane entered, and done
BEAT_GROUP: Final = struct.Struct("<48s4q")  # torch's name, last enqueued, started, completed, when these last moved
BEAT_GROUPS: Final = 64

FACTS_OFFSET: Final = BEATS_OFFSET + 2 * BEATS_BYTES
FACTS_BYTES: Final = 8192
FACTS_HEAD: Final = struct.Struct("<q")  # length of the JSON after it

FILE_BYTES: Final = FACTS_OFFSET + 2 * FACTS_BYTES

FLIGHT_RECORDER: Final = ("absent", "on", "off")
"""How torch's Flight Recorder stands: `absent` without torch, a process group or the function that tells."""

_SEQUENCE: Final = struct.Struct("<Q")
_TRAILER: Final = struct.Struct("<II")
CELL_OVERHEAD: Final = _SEQUENCE.size + _TRAILER.size

FACTS_LIMIT: Final = FACTS_BYTES - CELL_OVERHEAD - FACTS_HEAD.size
"""Bytes of JSON that fit."""


class Lane(NamedTuple):
    """One kind of collective of a rank: the operation, the group's role (dp, tp, ...) and the group's name. A `send`
    or `recv` has a lane for each `peer`, the other side's global rank; -1: no such operation, or any peer."""

    op: str
    role: str
    group: str
    peer: int = -1


class Counters(NamedTuple):
    """Cumulative since the writer began; times in nanoseconds. `lanes` holds (count, time, bytes) for each lane."""

    steps: int
    last_step: int
    step_ns: int
    own_ns: int
    phases_ns: tuple[int, ...]
    waited_ns: int
    lost: int
    errors: int
    lanes: tuple[tuple[int, int, int], ...]


class InFlightMark(NamedTuple):
    """The collective that the writer entered and has not left."""

    lane: int
    sequence: int
    issued_ns: int


class GroupMark(NamedTuple):
    """A process group as torch's Flight Recorder tells it: the numbers of the last collectives, -1 where it does not
    say. `moved_ns`: when any of the three was last seen to change."""

    name: str
    enqueued: int
    started: int
    completed: int
    moved_ns: int


class Beat(NamedTuple):
    """A sign of life. `flight_recorder`: index into FLIGHT_RECORDER. `lanes`: collectives (entered, done) of each lane,
    in the order of the lanes."""

    at_ns: int
    interval_ns: int
    flight_recorder: int
    lanes: tuple[tuple[int, int], ...]
    groups: tuple[GroupMark, ...]


def seal(sequence: int, body: bytes) -> bytes:
    """`body` as a cell that a reader can tell from a torn one."""
    head = _SEQUENCE.pack(sequence) + body
    low = sequence & 0xFFFFFFFF
    return head + _TRAILER.pack(low, zlib.crc32(head, low))


def unseal(cell: bytes, body_bytes: int) -> tuple[int, bytes] | None:
    """(sequence, body) of a whole cell; None for a torn, empty or foreign one."""
    end = _SEQUENCE.size + body_bytes
    if len(cell) < end + _TRAILER.size:
        return None
    (sequence,) = _SEQUENCE.unpack_from(cell)
    low, checksum = _TRAILER.unpack_from(cell, end)
    if sequence == 0 or low != sequence & 0xFFFFFFFF or checksum != zlib.crc32(cell[:end], low):
        return None
    return sequence, cell[_SEQUENCE.size : end]
