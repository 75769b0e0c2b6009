"""Looks at the other ranks of the job on this machine, and writes into this rank's recording which of them are gone or
stopped, and where they stood. A process that is killed or stopped cannot say so itself.

Who a rank's process is stands in the first line of its recording, and the kernel tells whether that process runs. Where
it stood is in its rank file, which outlives it. docs/development/contracts.md describes the lines. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Container, Iterator
from itertools import islice
from typing import Any, Final

from laggard.kit.processes import GONE, RUNS, of_wait_status, state_of, wait_status
from laggard.rankfile import BeatRecord, RankFileError, RankFileReader
from laggard.rankfile.layout import FLIGHT_RECORDER, SUFFIX
from laggard.trainer_hooks.output.recording import RecordingSink
from laggard.trainer_hooks.output.recording_folder import Identity, rank_file_name
from laggard.trainer_hooks.record.event_log import HotPathState
from laggard.trainer_hooks.record.events import in_flight, phase_name, standing

MAX_LOCAL_RANKS: Final = 64
"""The most ranks of one machine that are looked at: machines have eight or sixteen accelerators."""

_MAX_RANK_FILES: Final = 1024  # of this user, that are looked through for those of the job
_MAX_LOOKS: Final = 30  # beats, of about a second: by then all ranks of a machine have begun, or cannot be seen
_HEAD_BYTES: Final = 4096


class LocalRanks:
    """The other ranks of the machine, as one rank sees them. `folder`: of the recordings; `rank_file`: this rank's own,
    None where it has none."""

    def __init__(self, sink: RecordingSink, identity: Identity, folder: str, rank_file: str | None) -> None:
        self._sink = sink
        self._identity = identity
        self._folder = folder
        self._rank_file = rank_file
        self._told: dict[int, str] = {}  # by rank: its state when a line told of it last
        self._pid = os.getpid()  # a forked child writes nothing
        self._pidfds: dict[int, int] = {}  # by rank: by what the kernel tells later how it ended
        self._looks = 0  # for ranks that have none yet

    def remember(self) -> None:
        """Opens what tells later how a rank ended, of each that runs. Called at each beat: ranks start one by one."""
        if self._looks == _MAX_LOOKS or os.getpid() != self._pid:
            return
        self._looks += 1
        for rank in self._others():
            if rank not in self._pidfds:
                head, _ = self._head_and_end(rank)
                if state_of(head.get("process")) == RUNS:
                    with contextlib.suppress(OSError):
                        self._pidfds[rank] = os.pidfd_open(head["process"]["pid"])

    def look(self) -> None:
        """Writes a line about each rank that is gone or stopped, where none said so yet, and about each that is stopped
        no more."""
        self._look(also_running=False)

    def look_at_end(self) -> None:
        """This rank fails: writes a line about each rank, so that it is known which others were there until then."""
        self._look(also_running=True)

    def _look(self, also_running: bool) -> None:
        if os.getpid() != self._pid:
            return
        with contextlib.suppress(Exception):
            found = {
                rank: (state, how)
                for rank, state, how in self._states()
                if state != self._told.get(rank, RUNS) or (also_running and state == RUNS)
            }
            places = self._places(found)
            for rank, (state, how) in found.items():
                self._told[rank] = state
                about = {"of": rank, "state": state, "at_unix": time.time(), **how, **places.get(rank, {})}
                self._sink.write_at_once({"kind": "saw", **about})

    def _states(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """The ranks of this machine whose recordings have not ended, each with the state of its process, and how it
        ended where the kernel tells."""
        for rank in self._others():
            head, ended = self._head_and_end(rank)
            state = state_of(head.get("process"))
            if state is not None and not (state == GONE and ended):
                yield rank, state, self._how(rank, head["process"]["pid"]) if state == GONE else {}

    def _how(self, rank: int, pid: int) -> dict[str, Any]:
        """The signal or the status with which a rank ended."""
        status = of_wait_status(wait_status(self._pidfds.get(rank, -1), pid))
        if status is None:
            return {}
        return {"signal": status.signal} if status.signal else {"exit_code": status.code}

    def _head_and_end(self, rank: int) -> tuple[dict[str, Any], bool]:
        """The first line of a rank's recording, empty where there is none of this job, and whether one of its last
        tells of its end."""
        path = os.path.join(self._folder, rank_file_name(rank, self._identity.attempt))
        try:
            with open(path, "rb") as file:
                head = json.loads(file.readline(_HEAD_BYTES))
                file.seek(max(0, os.fstat(file.fileno()).st_size - _HEAD_BYTES))
                ended = b'\n{"kind": "end"' in file.read(_HEAD_BYTES)
        except (OSError, ValueError, RecursionError):
            return {}, False
        is_of_job = isinstance(head, dict) and head.get("job_id") == self._identity.job_id
        return (head if is_of_job else {}), ended

    def _others(self) -> Iterator[int]:
        """The numbers of the other ranks of this machine: launchers count them on."""
        count = os.environ.get("LOCAL_WORLD_SIZE", "")
        identity = self._identity
        first, size = identity.rank - identity.local_rank, int(count) if count.isdecimal() else identity.world_size
        for rank in range(max(0, first), min(first + min(size, MAX_LOCAL_RANKS), identity.world_size)):
            if rank != identity.rank:
                yield rank

    def _places(self, ranks: Container[int]) -> dict[int, dict[str, Any]]:
        """The phase and the collective that each rank stands in, by the newest rank file of its number."""
        found: dict[int, tuple[int, dict[str, Any]]] = {}
        for path in rank_files_beside(self._rank_file, _MAX_RANK_FILES) if ranks and self._rank_file else ():
            with contextlib.suppress(RankFileError, OSError), RankFileReader(path) as file:
                about = file.identity
                rank, began = about["rank"], about["wall_ns"]
                is_of_job = about["job_id"] == self._identity.job_id and about["attempt"] == self._identity.attempt
                if is_of_job and rank in ranks and began > found.get(rank, (0,))[0]:
                    found[rank] = began, _place(file)
        return {rank: place for rank, (_, place) in found.items()}


def rank_files_beside(own_file: str, most: int) -> Iterator[str]:
    """This user's other rank files. The own one is never opened: a process that closes a file loses its locks on it,
    and by the lock the agent knows that the rank lives."""
    own = os.path.realpath(own_file)
    with os.scandir(os.path.dirname(own)) as entries:
        paths = (entry.path for entry in entries if entry.name.endswith(SUFFIX))
        yield from (path for path in islice(paths, most) if path != own)


def _place(file: RankFileReader) -> dict[str, Any]:
    live, flight = file.live_state(), None
    if live.collective is not None:
        lane, sequence, issued = live.collective.lane, live.collective.sequence, live.collective.issued_ns
        flight = in_flight(file.lanes(), lane, sequence, issued, time.perf_counter_ns())
    return {"phase": phase_name(live.phase), "in_flight": flight}


# Writes into a recording where this rank stands while it finishes no step. Of a process that is killed there, nothing
# else tells what it was in.
#
# The heartbeat calls it on its thread; the training thread does nothing for it.

_MIN_SECONDS: Final = 1.0  # without a step: most jobs' steps are shorter, and their recordings have no such line
_MAX_SECONDS: Final = 5.0  # between two lines: a job whose steps take minutes gets 10 MB a day


class QuietBeats:
    """Takes the beats of one rank, and writes a line about one that comes _MIN_SECONDS after the last step or later.
    The next follows when half as much time again has passed, at least _MIN_SECONDS, at most _MAX_SECONDS."""

    def __init__(self, sink: RecordingSink, live: HotPathState, others: LocalRanks) -> None:
        self._sink = sink
        self._others = others
        self._live = live
        self._since = 0  # the end of the last step, or the start
        self._due = 0.0

    def take(self, beat: BeatRecord) -> None:
        self._others.remember()
        since = self._sink.quiet_since_ns
        if since != self._since:
            self._since, self._due = since, _MIN_SECONDS
        quiet = (beat.at_ns - since) / 1e9
        if quiet < self._due:
            return
        interval = min(max(_MIN_SECONDS, quiet / 2), _MAX_SECONDS)
        self._due = quiet + interval
        place = standing(self._live.words, self._sink.lanes, beat.at_ns)
        self._sink.write_at_once({"kind": "beat", "quiet_seconds": quiet, **place, "beat": self._beat(beat, interval)})
        self._others.look()

    def _beat(self, beat: BeatRecord, interval: float) -> dict[str, Any]:
        """The beat, as of itself, in the form of an agent's rows."""
        return {
            "age_seconds": 0.0,
            "interval_seconds": interval,
            "flight_recorder": FLIGHT_RECORDER[beat.flight_recorder],
            "lanes": [
                {
                    "op": lane.op,
                    "group": lane.group,
                    "entered": entered,
                    "done": done,
                    **({} if lane.peer < 0 else {"peer": lane.peer}),
                }
                for lane, (entered, done) in zip(self._sink.lanes, beat.lanes, strict=False)
            ],
            "groups": [
                {
                    "name": group.name,
                    "enqueued": group.enqueued,
                    "started": group.started,
                    "completed": group.completed,
                    "seconds": max(0, beat.asked_ns - group.moved_ns) / 1e9,
                }
                for group in beat.groups
            ],
            "groups_age_seconds": max(0, beat.at_ns - beat.asked_ns) / 1e9 if beat.asked_ns else None,
        }
