"""One rank file as a row. The file is anybody's: what can be checked with the kernel is, the rest is bounded."""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard import wire
from laggard.agent.ranks.process_info import Process, look_at
from laggard.agent.ranks.validation import (
    MOST_STEP_NS,
    check_beat,
    check_counters,
    check_identity,
    check_lanes,
    is_plausible,
)
from laggard.catalogue.rank_metrics import sums
from laggard.constants import PHASES
from laggard.rankfile import Beat, Counters, InFlightMark, Lane, RankFileError, RankFileReader
from laggard.rankfile.layout import FLIGHT_RECORDER
from laggard.wire import CollectiveTotal, InFlight, RankRow, StepRow

_NOTHING: Final = Counters(0, -1, 0, 0, (0,) * len(PHASES), 0, 0, 0, ())


class Clocks(NamedTuple):
    """One moment on the clock of the rank files (CLOCK_MONOTONIC) and in Unix time; nanoseconds."""

    monotonic_ns: int
    wall_ns: int


class Sighting(NamedTuple):
    """A row, and what it is ranked by. `quiet_ns`: since the rank's last sign of life; negative where that is still
    to come, which a file from before a reboot may say."""

    path: str
    row: RankRow
    started_ns: int
    quiet_ns: int


class _Writer(NamedTuple):
    """`pid` 0: not visible from here. `process` None: nor is what the kernel knows of it."""

    pid: int
    process: Process | None
    lives: bool


def sight(path: str, node: str, now: Clocks) -> Sighting:
    """Reads the header, counters and live words. Raises RankFileError where the file is not to be believed."""
    with RankFileReader(path) as file:
        writer = _writer(file)
        state = "running" if writer.lives else "finished" if file.finished() else "died"
        live, counters, lanes, who = file.in_flight(), file.counters() or _NOTHING, file.lanes(), file.identity
        check_identity(who)
        check_counters(counters)
        check_lanes(lanes)
        beat = file.beat()
        check_beat(beat)
        finished = state == "finished"
        progress_ns = live.progress_ns or who["monotonic_ns"]
        began_ns = who["wall_ns"] - who["monotonic_ns"]  # Unix time of the monotonic clock's zero
        gpu = who.get("gpu")
        row = RankRow(
            job_id=who["job_id"],
            rank=who["rank"],
            local_rank=who["local_rank"],
            world_size=who["world_size"],
            node=node,  # the file lies on this machine, whatever it says: in a pod, the host name is the pod's
            gpu=gpu if isinstance(gpu, str) else None,
            attempt=who["attempt"],
            owner=file.owner,
            pid=writer.pid,
            cgroup=writer.process.cgroup if writer.process else "",
            state=state,
            steps=counters.steps,
            step_seconds=counters.step_ns / 1e9,
            own_seconds=counters.own_ns / 1e9,
            phase_seconds=tuple(spent / 1e9 for spent in counters.phases_ns),
            last_progress_timestamp_seconds=_wall_ns(began_ns + progress_ns, now) / 1e9,
            collectives=_totals(lanes, counters),
            in_flight=None if finished else _in_flight(live.mark, lanes, now),
            phase=PHASES[live.phase] if not finished and 0 <= live.phase < len(PHASES) else None,
            lost=counters.lost + counters.errors,
            stopped=writer.process is not None and writer.process.stopped,
            beat=None if finished or beat is None else _beat(beat, lanes, now),
            last_beat_timestamp_seconds=_wall_ns(began_ns + beat.at_ns, now) / 1e9 if beat else None,
            facts=file.facts(),
        )
        return Sighting(path, row, who["wall_ns"], now.monotonic_ns - progress_ns)


def steps_of(sighting: Sighting, since_ns: int, most: int) -> tuple[StepRow, ...]:
    """The newest `most` steps that ended at or after `since_ns`; none where the file is another one by now."""
    expected = (sighting.row.owner, sighting.started_ns, sighting.row.job_id, sighting.row.rank)
    try:
        with RankFileReader(sighting.path) as file:
            who = file.identity
            if (file.owner, who["wall_ns"], who["job_id"], who["rank"]) != expected:
                return ()
            steps = file.steps(since_ns)[-most:]
    except RankFileError:
        return ()
    return tuple(
        StepRow(it.step, it.start / 1e9, it.end / 1e9, tuple(spent / 1e9 for spent in it.phases), it.waited / 1e9)
        for it in steps
        if is_plausible(it)
    )


def _writer(file: RankFileReader) -> _Writer:
    """Who holds the lock. Asked again after the look at the process: the holder may be gone by then, and its number
    another's."""
    for _ in range(3):
        pid = file.holder()
        if not pid:  # none, or one in a pid namespace that we cannot see into: nobody to compare the owner with
            return _Writer(0, None, pid is not None)
        process = look_at(pid)
        if file.holder() == pid:
            if process is not None and file.owner not in process.uids:
                raise RankFileError("not its owner's process")
            return _Writer(pid, process, True)
    raise RankFileError("the writer changes")


def _totals(lanes: tuple[Lane, ...], counters: Counters) -> tuple[CollectiveTotal, ...]:
    found = sums(((lane.op, lane.role) for lane in lanes), counters.lanes)
    return tuple(CollectiveTotal(it.op, it.group, it.count, it.seconds, it.bytes) for it in found)


def _in_flight(mark: InFlightMark | None, lanes: tuple[Lane, ...], now: Clocks) -> InFlight | None:
    if mark is None or not 0 <= mark.lane < len(lanes):
        return None
    lane = lanes[mark.lane]
    return InFlight(lane.op, lane.group, mark.sequence, _since(mark.issued_ns, now), lane.peer)


def _beat(beat: Beat, lanes: tuple[Lane, ...], now: Clocks) -> wire.Beat:
    pairs = zip(lanes, beat.lanes, strict=False)
    return wire.Beat(
        age_seconds=_since(beat.at_ns, now),
        interval_seconds=beat.interval_ns / 1e9,
        flight_recorder=FLIGHT_RECORDER[beat.flight_recorder],
        lanes=tuple(wire.LaneProgress(lane.op, lane.group, *numbers, lane.peer) for lane, numbers in pairs),
        groups=tuple(
            wire.GroupProgress(it.name, it.enqueued, it.started, it.completed, _since(it.moved_ns, now))
            for it in beat.groups
        ),
    )


def _since(moment_ns: int, now: Clocks) -> float:
    return min(max(0, now.monotonic_ns - moment_ns), MOST_STEP_NS) / 1e9


def _wall_ns(claimed_ns: int, now: Clocks) -> int:
    """Nobody made progress in the future."""
    return min(max(claimed_ns, 0), now.wall_ns)
