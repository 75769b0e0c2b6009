"""Writes a rank's records into a recording, for `laggard locate --trace`. docs/development/contracts.md describes its
lines."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from laggard.kit.constants import PHASES
from laggard.kit.processes import own_identity
from laggard.rankfile import Lane
from laggard.rankfile.fact_names import (
    DEEPSPEED,
    ENDING,
    ENVIRONMENT,
    GPU,
    HIDDEN_WAITS,
    OWN_THREADS,
    SCRIPT,
    STARTED,
    TIMED_EVERY,
    UNSEEN_WAITS,
)
from laggard.rankfile.layout import LANE_SHIFT, SEQUENCE_MASK
from laggard.trainer_hooks.output.recording_folder import Identity, rank_file_name
from laggard.trainer_hooks.record.aggregator import BEFORE_STEPS
from laggard.trainer_hooks.record.ending import DIGEST_LOG, FACTS
from laggard.trainer_hooks.record.event_log import PeriodicThread
from laggard.trainer_hooks.record.events import RECORD_NUMBERS, Sink, StepRecord, Totals

log = logging.getLogger("laggard")

MAX_BYTES: Final = 1 << 30
"""The most bytes of one rank's recording: a day of a thousand collectives a minute. Later lines are counted as lost."""

_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MAX_QUEUED_BYTES: Final = 64 << 20  # bytes, while the disk is slow or stuck
_ROOM_BYTES: Final = 1024
_LONGEST_LINE: Final = 64 << 10


class LineFile:
    """Keeps lines until flush(), and writes them on a thread of its own: the caller never waits for a disk. Nothing is
    buffered in a file object, so a forked child inherits nothing that could be written twice. After the first write
    that fails lines are counted as lost in `lost`, but for the last one: it stands in the place of the lines before,
    since a full disk has no other."""

    def __init__(
        self, path: str, head: str = "", max_bytes: int = MAX_BYTES, stopped: Callable[[str], str] | None = None
    ) -> None:
        """Creates the file with `head`, its first line: whatever becomes of the process, and whenever another looks, it
        says what it is. `stopped` makes the last line of a file that ends before its process, of the reason. Raises
        OSError where that fails; FileExistsError where the file exists."""
        self._path = path
        self._line_of_stop = stopped
        self._room: int | None = None  # where the last line stands, once writing has failed
        self._max_bytes = max_bytes
        self._written = 0
        self._create(f"{head}\n".encode() if head else b"")
        self._size = self._written  # of the file with what is queued
        self._lines: list[str] = []
        self._queue: list[bytes] = []
        self._queueing = threading.Lock()
        self._stopped = False
        self._reported_lost = 0
        self.lost = 0
        self._thread = PeriodicThread(self._write_queue)
        self._thread.pause_around_forks()
        with contextlib.suppress(RuntimeError):  # no further thread: close() writes
            self._thread.start()

    def _create(self, head: bytes) -> None:
        """The file gets its name once its head is in it: other ranks read the head, to know whose file it is. On a file
        system without hard links it has its name from the start."""
        folder, name = os.path.split(self._path)
        unnamed = os.path.join(folder, f".{name}.{os.getpid()}")
        self._fd = os.open(unnamed, _NEW_FILE, 0o644)
        try:
            self._write_all(head)
            os.link(unnamed, self._path)
        except FileExistsError:
            os.close(self._fd)
            raise
        except OSError:
            os.close(self._fd)
            self._written = 0
            self._fd = os.open(self._path, _NEW_FILE, 0o644)
            self._write_all(head)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(unnamed)

    def write(self, line: str) -> None:
        """Keeps a line, without its line feed, until flush()."""
        self._lines.append(line)

    def flush(self) -> None:
        """Queues the kept lines for writing, or counts them as lost. Never raises."""
        lines, self._lines = self._lines, []
        self._enqueue(lines)

    def write_at_once(self, line: str) -> None:
        """Queues a line for writing, before those that are kept. From any thread. Never raises."""
        self._enqueue([line])

    def write_last(self, line: str) -> None:
        """Writes the line that is the file's last, unless another such line follows. From any thread. Never raises."""
        with self._queueing:
            if self._room is None:
                self._queue.append(f"{line}\n".encode())
            else:
                self._write_in_room(line)

    def settle(self, seconds: float) -> None:
        """Waits until what is queued is written, at most so long: for a process that may be killed next."""
        until = time.monotonic() + seconds
        while self._queue and time.monotonic() < until:
            time.sleep(0.005)

    def _enqueue(self, lines: list[str]) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        with self._queueing:
            if not self._stopped and self._size + len(data) > self._max_bytes:
                self._stop_writing(f"it has {self._size} bytes, and the limit is {self._max_bytes}")
            if not self._stopped and sum(map(len, self._queue)) + len(data) > _MAX_QUEUED_BYTES:
                self._stop_writing("its disk is too slow")
            if self._stopped:
                self.lost += len(lines)
            else:
                self._size += len(data)
                self._queue.append(data)

    def _write_queue(self) -> None:
        while self._queue:
            data = self._queue[0]
            try:
                self._write_all(data)
                del self._queue[0]
            except OSError as error:
                with self._queueing:
                    self._fail(error.strerror or "it cannot be written")

    def _fail(self, reason: str) -> None:
        """Gives up what is queued, and the file's last lines for the one that says why."""
        self.lost += sum(each.count(b"\n") for each in self._queue)
        self._queue.clear()
        self._room = self._written
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._written)  # do not leave half a line
            begin = max(0, self._written - _LONGEST_LINE)
            end = os.pread(self._fd, _LONGEST_LINE, begin)
            cut = end.rfind(b"\n", 0, max(0, len(end) - _ROOM_BYTES)) + 1
            self.lost += end.count(b"\n", cut) if cut else 0
            self._room = begin + cut if cut else self._written  # there, nothing fits
        self._stopped = False  # what it may have said of its size is gone
        self._stop_writing(reason)

    def _write_in_room(self, line: str) -> None:
        """Puts the line, filled up with blanks, from the room's begin to the file's end: on blocks that it has."""
        assert self._room is not None
        size = self._written - self._room
        data = line.encode().ljust(size - 1) + b"\n"
        if len(data) <= size:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, data, self._room)

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._written += len(data)

    def _stop_writing(self, reason: str) -> None:
        """With the queue's lock held."""
        if not self._stopped and self._line_of_stop is not None:
            line = self._line_of_stop(reason)
            if self._room is None:
                self._queue.append(f"{line}\n".encode())
            else:
                self._write_in_room(line)
        self._stopped = True
        log.warning("laggard: the recording %s ends here, the training goes on: %s", self._path, reason)

    def newly_lost(self) -> int:
        """The number of lines that were lost since the last call."""
        before, self._reported_lost = self._reported_lost, self.lost
        return self.lost - before

    def close(self) -> None:
        """Writes what is left and closes the file. Where the disk is stuck, the rest is not written."""
        self.flush()
        if self._thread.stop():
            self._write_queue()
            os.close(self._fd)


_LINES_OF_FACTS: Final = (("environment", (ENVIRONMENT, DEEPSPEED)), ("threads", (OWN_THREADS,)))
_SETTLE_SECONDS: Final = 0.3  # three times as long as the file's thread takes to come round
_MIN_NS: Final = 10_000
_MIN_SHARE: Final = 0.01


class RecordingSink(Sink):
    """Writes a recording: JSON lines, one file for each rank. A process that is killed,
    or ends by os._exit, leaves out its last tenth of a second, its unfinished step and the `end` record; where it stood
    for a while before, write_at_once() has told in what.

    Attributes for that (local_ranks.py): `quiet_since_ns`, the end of the last step, before it the start, on the clock
    of the records; `folder`; `last_step`, None before the first; `lanes`, in the order of their indices.
    """

    def __init__(self, directory: str, identity: Identity) -> None:
        """Raises OSError where the file cannot be created; FileExistsError where the directory holds this rank's
        recording already: nothing is overwritten."""
        os.makedirs(directory, exist_ok=True)
        self.folder = directory
        about = {"job_id": identity.job_id, "ends": True, "beats": True, "process": own_identity()}
        name = rank_file_name(identity.rank, identity.attempt)
        head = json.dumps({"laggard_recording": 1, **about})
        self._file = LineFile(os.path.join(directory, name), head, stopped=self._stopped)
        self._identity = identity
        self.lanes: list[Lane] = []
        self.quiet_since_ns = time.perf_counter_ns()
        self.last_step: int | None = None
        self._groups: dict[str, dict[str, Any]] = {}
        self._waited = 0  # nanoseconds, in the collectives of the present step
        self._told: dict[str, dict[str, Any]] = {}  # the facts of each kind of line
        self._rank_line: tuple[Any, ...] | None = None  # how many groups it named, the GPU, what it times

    def _write(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, "rank": self._identity.rank, **values}))

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None:
        self.lanes.append(lane)
        self._groups[lane.group] = {"role": lane.role, "ranks": list(members)}

    def _write_rank_line(self) -> None:
        """Writes the rank's own line, and again once there are new groups, the GPU is known, or it turns out that waits
        are not seen."""
        identity = self._identity
        gpu = FACTS.get(GPU) or identity.gpu
        waits = {name: FACTS.get(name) for name in (UNSEEN_WAITS, HIDDEN_WAITS, TIMED_EVERY) if FACTS.get(name)}
        if self._rank_line == (len(self._groups), gpu, waits):
            return
        self._rank_line = len(self._groups), gpu, waits
        position = {  # in the largest group of a role: an expert's dp group is a part of the whole dp group
            group["role"]: group["ranks"].index(identity.rank)
            for group in sorted(self._groups.values(), key=lambda group: len(group["ranks"]))
            if group["role"] in ("dp", "tp", "pp", "ep") and identity.rank in group["ranks"]
        }
        known = {name: FACTS.get(name) for name in (SCRIPT, STARTED) if FACTS.get(name) is not None}
        self._write(
            "rank",
            node=identity.node,
            local_rank=identity.local_rank,
            gpu=gpu,
            attempt=identity.attempt,
            world_size=identity.world_size,
            unix_minus_clock=time.time() - time.perf_counter(),
            position=position,
            groups=self._groups,
            facts={**known, **waits},
        )

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        self._write_rank_line()
        self._waited += sum(numbers[3::RECORD_NUMBERS])
        for word, arrival, end, waited, size in zip(*[iter(numbers)] * RECORD_NUMBERS, strict=True):
            lane = self.lanes[word >> LANE_SHIFT]
            self._write(
                "collective",
                step=None if step == BEFORE_STEPS else step,
                group=lane.group,
                op=lane.op,
                **({} if lane.peer < 0 else {"peer": lane.peer}),
                seq=(word & SEQUENCE_MASK) - 1,
                bytes=size,
                issued=launched.get(word, arrival) / 1e9,
                start=arrival / 1e9,
                end=end / 1e9 if end else None,
                waited=waited / 1e9,
                clock="device" if word in launched else "host",
            )

    def step(self, record: StepRecord, totals: Totals) -> None:
        self._write_rank_line()
        step = record.step
        for phase, start, end, micro in record.spans:
            self._write("span", step=step, name=PHASES[phase], start=start / 1e9, end=end / 1e9, micro=micro)
        work = {"work": record.work} if record.work else {}
        self._write("step", step=step, start=record.start / 1e9, end=record.end / 1e9, **self._own(record), **work)
        self._waited = 0
        self._file.flush()
        self.quiet_since_ns, self.last_step = record.end, step
        totals.lost += self._file.newly_lost()

    def _own(self, record: StepRecord) -> dict[str, Any]:
        """The own times of a step that waited longer than its collectives say, as for functional ones: where it did is
        in no line."""
        if record.waited - self._waited < max(_MIN_NS, record.waited * _MIN_SHARE):
            return {}
        own = {name: seconds / 1e9 for name, seconds in zip(PHASES, record.phases, strict=True)}
        return {"own": own, "waited": record.waited / 1e9}

    def write_at_once(self, value: Mapping[str, Any]) -> None:
        """Writes a line of `value`, with the rank and its last step, without waiting for the step's end. For another
        thread than the other methods', too."""
        about = {"kind": value["kind"], "rank": self._identity.rank, "last_step": self.last_step}
        self._file.write_at_once(json.dumps({**about, **value}))

    def write_departure(self) -> None:
        """Writes that the rank leaves torch.distributed in order, and waits for that: Ray ends its workers then."""
        self._file.write_last(json.dumps({"kind": "left", "rank": self._identity.rank, "at_unix": time.time()}))
        self._file.settle(_SETTLE_SECONDS)

    def flush(self, totals: Totals) -> None:
        self._write_news()

    def _write_news(self) -> None:
        """Writes what surrounds the training, how the process's own threads ran, and digests, where that is new."""
        for kind, names in _LINES_OF_FACTS:
            told = {name: FACTS.get(name) for name in names if FACTS.get(name)}
            if told and told != self._told.get(kind):
                self._told[kind] = told
                self._write(kind, **told)
        for digest in DIGEST_LOG.take():
            self._write("digest", **digest)

    def write_ending(self) -> None:
        """Writes that the rank ends by an exception, and waits for that: what catches it may kill the process."""
        self._file.write_last(self._end())
        self._file.settle(_SETTLE_SECONDS)

    def close(self) -> None:
        self._write_rank_line()
        self._write_news()
        self._file.flush()
        self._file.write_last(self._end())
        self._file.close()

    def _stopped(self, reason: str) -> str:
        return json.dumps({"kind": "stopped", "rank": self._identity.rank, "why": reason})

    def _end(self) -> str:
        end = {"lost": self._file.lost, "at_seconds": time.perf_counter(), **(FACTS.get(ENDING) or {})}
        return json.dumps({"kind": "end", "rank": self._identity.rank, **end})
