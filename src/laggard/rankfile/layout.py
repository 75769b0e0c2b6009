"""The layout of a rank file, by offset. Little-endian; all times are nanoseconds of CLOCK_MONOTONIC.

    0       header      magic, version, size, then the writer's identity as JSON, written once
    4096    live words  eight-byte words, stored without a lock: the collective in flight, the phase, the progress
    8192    lanes       (operation, role, group), each written once, in order
    16384   counters    two cells, written alternately, so that one is always whole
    32768   steps       ring of step cells
    208896  collectives ring of blocks, each with the collectives of one step (or 64 of them)
    544768  beats       two cells, written alternately, about one a second, by a background thread
    561152  facts       two cells, written alternately: what the rank knows about itself, as JSON

A cell is `sequence, body, low half of the sequence, CRC-32 of all these`. A cell that is being written at the moment of
the read, or that a killed writer left half-written, has a wrong CRC, and the reader treats it as absent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from laggard.kit.constants import PHASES

MAGIC: Final = b"LAGGRANK"
VERSION: Final = 4
SUFFIX: Final = ".rank"

HEADER: Final = struct.Struct("<8sIIQII")  # magic, version, reserved, file size, identity length, identity CRC
IDENTITY_OFFSET: Final = 64
IDENTITY_BYTES: Final = 4096 - IDENTITY_OFFSET

LIVE_OFFSET: Final = 4096
LIVE_WORDS: Final = 64
WORD_CURRENT: Final = 0  # lane << LANE_SHIFT | sequence number of the collective entered last
WORD_ISSUED: Final = 1  # when it was entered; 0 once it is left. Stored after WORD_CURRENT: never another one's time
WORD_PHASE: Final = 2  # index into constants.PHASES, or -1
WORD_PROGRESS: Final = 3  # when the writer last entered or left a phase
WORD_STATE: Final = 4  # STATE_*
WORD_STEP_CELLS: Final = 5  # step cells written so far, which is the sequence number of the newest

LANE_SHIFT: Final = 48  # 65,536 lanes, 2.8e14 collectives in each
SEQUENCE_MASK: Final = (1 << LANE_SHIFT) - 1

STATE_RUNNING: Final = 1
STATE_FINISHED: Final = 2
STATE_LEFT: Final = 3  # it runs, and has left torch.distributed in order: nobody waits for it any more

LANES_OFFSET: Final = 8192
GROUP_BYTES: Final = 88
LANE: Final = struct.Struct(f"<16s16s{GROUP_BYTES}siI")  # operation, role, group, peer, CRC of all these
LANE_BODY: Final = LANE.size - 4
LANE_COUNT: Final = 64

COUNTERS_OFFSET: Final = 16384
COUNTERS_BYTES: Final = 8192
COUNTERS_FIXED: Final = 8 + len(PHASES)  # numbers before the lanes' in RankCounters; each phase is one

STEPS_OFFSET: Final = 32768
STEP_BODY: Final = struct.Struct(f"<{5 + len(PHASES)}q")  # step, start, end, the phases, waited, work
STEP_SLOT: Final = 128
STEP_COUNT: Final = 1365

BLOCKS_OFFSET: Final = 208896
BLOCK_HEAD: Final = struct.Struct("<qI4x")  # step, number of records
RECORD: Final = struct.Struct("<5q")  # lane and sequence, arrival, end (0: not yet), waited, bytes
RECORDS_PER_BLOCK: Final = 64
BLOCK_SLOT: Final = 2624  # sequence 8 + head 16 + 64 records of 40 + trailer 8, and spare
BLOCK_COUNT: Final = 128

BEATS_OFFSET: Final = BLOCKS_OFFSET + BLOCK_SLOT * BLOCK_COUNT
BEATS_BYTES: Final = 8192
BEAT_HEAD: Final = struct.Struct("<6q")  # when, interval, Flight Recorder's state, when asked, counts of lanes, groups
BEAT_LANE: Final = struct.Struct("<2q")  # collectives of the lane entered, and done
BEAT_GROUP: Final = struct.Struct("<48s4q")  # torch's name, last enqueued, started, completed, when these last moved
BEAT_GROUPS: Final = 64

FACTS_OFFSET: Final = BEATS_OFFSET + 2 * BEATS_BYTES
FACTS_BYTES: Final = 8192
FACTS_HEAD: Final = struct.Struct("<q")  # length of the JSON after it

FILE_BYTES: Final = FACTS_OFFSET + 2 * FACTS_BYTES

FLIGHT_RECORDER: Final = ("absent", "on", "off")
"""The states of torch's Flight Recorder; `absent`: there is no torch, no process group or no function to read it."""

_SEQUENCE: Final = struct.Struct("<Q")
_TRAILER: Final = struct.Struct("<II")
_STEP_CELL: Final = struct.Struct(_SEQUENCE.format + STEP_BODY.format[1:] + _TRAILER.format[1:])
_STEP_CHECKED: Final = _STEP_CELL.size - _TRAILER.size
CELL_OVERHEAD: Final = _SEQUENCE.size + _TRAILER.size

FACTS_LIMIT: Final = FACTS_BYTES - CELL_OVERHEAD - FACTS_HEAD.size
"""The most bytes of JSON that fit."""


class Lane(NamedTuple):
    """A series of collectives of a rank: those of one operation in one group. `role` is the group's role (dp, tp, ...).
    `send` and `recv` have a lane for each `peer`, the global rank of the other side; -1: another operation, or any
    peer."""

    op: str
    role: str
    group: str
    peer: int = -1


class RankCounters(NamedTuple):
    """A rank's counters, cumulative since the writer began; times in nanoseconds. `work` counts the elements of the
    model's inputs. `lanes` holds (count, time blocked, bytes) for each lane."""

    steps: int
    last_step: int
    step_ns: int
    own_ns: int
    phases_ns: tuple[int, ...]
    waited_ns: int
    lost: int
    errors: int
    work: int
    lanes: tuple[tuple[int, int, int], ...]


class CollectiveInFlight(NamedTuple):
    """The collective that the rank has entered and not left."""

    lane: int
    sequence: int
    issued_ns: int


class GroupState(NamedTuple):
    """A process group as torch's Flight Recorder reports it: the numbers of the collectives last enqueued, started and
    completed, -1 where it does not report them. `moved_ns`: when any of the three was first seen to have changed; they
    have stood still from then until torch was asked last, and nothing is known of the time after."""

    name: str
    enqueued: int
    started: int
    completed: int
    moved_ns: int


class BeatRecord(NamedTuple):
    """One heartbeat. `flight_recorder`: index into FLIGHT_RECORDER. `lanes`: how many collectives of each lane were
    (entered, done), in the order of the lanes. `asked_ns`: when torch was asked for its state and for `groups`, which
    not every beat does; 0: not known."""

    at_ns: int
    interval_ns: int
    flight_recorder: int
    lanes: tuple[tuple[int, int], ...]
    groups: tuple[GroupState, ...]
    asked_ns: int = 0


def pack_cell(sequence: int, body: bytes) -> bytes:
    """`body` as a cell."""
    head = _SEQUENCE.pack(sequence) + body
    low = sequence & 0xFFFFFFFF
    return head + _TRAILER.pack(low, zlib.crc32(head, low))


def unpack_cell(cell: bytes, body_bytes: int) -> tuple[int, bytes] | None:
    """(sequence, body) of a cell; None where it is torn or empty, or no cell."""
    end = _SEQUENCE.size + body_bytes
    if len(cell) < end + _TRAILER.size:
        return None
    (sequence,) = _SEQUENCE.unpack_from(cell)
    low, checksum = _TRAILER.unpack_from(cell, end)
    if sequence == 0 or low != sequence & 0xFFFFFFFF or checksum != zlib.crc32(cell[:end], low):
        return None
    return sequence, cell[_SEQUENCE.size : end]


def unpack_steps(part: bytes, newest: int) -> Iterator[tuple[int, ...]]:
    """The numbers of STEP_BODY of each cell of `part`, the newest first, whose sequence number is `newest`; without
    those that unpack_cell would not take. All at once, because an agent reads hundreds of them a second."""
    for at in range(len(part) // STEP_SLOT * STEP_SLOT - STEP_SLOT, -1, -STEP_SLOT):
        cell = _STEP_CELL.unpack_from(part, at)
        low, checksum = cell[-2:]
        whole = cell[0] == newest and low == newest & 0xFFFFFFFF
        if whole and zlib.crc32(part[at : at + _STEP_CHECKED], low) == checksum:
            yield cell[1:-2]
        newest -= 1


# The rank directory: one of the node, with a subdirectory for each user, so that nobody fills or removes another's.
#
# The node's directory should be root's, with mode 1777 (tmpfiles.d, or an agent that runs as root): the sticky bit
# keeps users from one another's entries, but not the owner of the directory from anybody's.

SHARED_MODE = 0o1777


def own_directory(base: str) -> str:
    """This user's subdirectory of `base`, by uid; both are created where they are missing. `base` itself where the
    subdirectory cannot be created, or its name is taken by somebody else. Raises OSError where there is no `base` and
    it cannot be created."""
    _make_shared(base)
    with contextlib.suppress(OSError):
        return own_folder(os.path.join(base, str(os.geteuid())), 0o755)  # the agent is another user
    return base


def own_folder(path: str, mode: int = 0o700) -> str:
    """`path`, a folder of this user alone, created with `mode` where it is missing. In a folder that others may write
    to, somebody else may have taken its name: raises OSError where it is another's, a link, or others may write to
    it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
        os.chmod(path, mode)  # whatever the umask
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "is not this user's alone", path)
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return path


def log_directory(base: str) -> str:
    """The directory where this user's processes keep NCCL's private logs: hidden in own_directory(), or in `base` under
    a name of their own. Raises OSError as own_directory() does."""
    own = own_directory(base)
    return os.path.join(own, ".nccl" if own != base else f".nccl-{os.geteuid()}")


def _make_shared(directory: str) -> None:
    """Creates the directory for the ranks of every user (sticky, as /tmp), unless it is there already."""
    try:
        os.makedirs(directory)
    except FileExistsError:
        return
    os.chmod(directory, SHARED_MODE)


ENDED_SECONDS = 600.0
"""The time after its last beat for which the file of a rank that ended stays: agents tell of it so long."""


def prune(directory: str) -> None:
    """Removes this user's files whose writers ended ten minutes ago, because they take memory. So it does what lies
    beside them under their names, such as stacks. A process may have been killed: only others can do that for it."""
    now = time.time()
    for path in Path(directory).glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # its writer lives and holds the lock, or another process removes it as well
            about = path.lstat()
            if about.st_uid != os.geteuid() or not stat.S_ISREG(about.st_mode) or now - about.st_mtime <= ENDED_SECONDS:
                continue
            with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for each in Path(directory).glob(f"{glob.escape(path.stem)}.*"):
                    each.unlink()
