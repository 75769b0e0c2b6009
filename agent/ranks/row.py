"""One rank file as a row of `laggard.ranks/1`. Any user may have written the file: what the kernel can confirm is
checked with it, the rest is bounded."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import structs

from laggard.agent.ranks.cpu_wait import CpuWaits
from laggard.agent.ranks.end import ExitWatch, LastMoment, is_failure, is_harmless, rank_end
from laggard.catalogue.rank_metrics import sum_collectives
from laggard.kit.constants import PHASES
from laggard.kit.limits import MAX_COUNT, MAX_WORLD
from laggard.kit.processes import read_text
from laggard.model import RankEnd
from laggard.rankfile import BeatRecord, CollectiveInFlight, Lane, RankCounters, RankFileError, RankFileReader, Step
from laggard.rankfile.fact_names import ENDING, GPU
from laggard.rankfile.layout import FLIGHT_RECORDER
from laggard.wire.ranks import BeatRow, CollectiveTotal, GroupProgress, InFlight, LaneProgress, RankRow

_MAX_CGROUP_LENGTH: Final = 512


class ProcessInfo(NamedTuple):
    """`uids`: the real and the effective user. `cgroup`: the path, "" where the process is in none. `stopped`: by a
    signal (SIGSTOP) or by a tracer (a debugger)."""

    uids: tuple[int, int]
    cgroup: str
    stopped: bool = False


def read_process_info(pid: int, proc: str = "/proc") -> ProcessInfo | None:
    """Reads /proc/PID/status and /proc/PID/cgroup. Returns None where the process is gone, or hidden from this user
    (mount option hidepid)."""
    try:
        status = read_text(f"{proc}/{pid}/status")
        cgroups = read_text(f"{proc}/{pid}/cgroup")
    except OSError:
        return None
    uids = re.search(r"^Uid:\s+(\d+)\s+(\d+)", status, re.MULTILINE)
    if uids is None:
        return None
    stopped = re.search(r"^State:\s+[Tt]\b", status, re.MULTILINE) is not None
    return ProcessInfo((int(uids[1]), int(uids[2])), _cgroup(cgroups), stopped)


def _cgroup(lines: str) -> str:
    """Returns the path in the unified hierarchy; on hosts that still mount the old hierarchies, the deepest path of
    all."""
    paths = [line.split(":", 2)[2] for line in lines.splitlines() if line.count(":") >= 2]
    deepest = max(paths, key=lambda path: path.count("/"), default="")
    shown = deepest[:_MAX_CGROUP_LENGTH]
    if not shown.isprintable():
        shown = "".join(character if character.isprintable() else "?" for character in shown)
    return "" if shown == "/" else shown


# Validation of the numbers in a rank file. A checksum proves that they were written whole, not that they are sane. A
# collector rejects a node's whole answer for one absurd number, so that no number of one user's file may cause that.

MAX_SUM: Final = 1 << 62
MAX_STEP_NS: Final = 10**16  # 115 days
_ROUNDING_NS: Final = 10**4
"""A time is sent as seconds, whose rounding can make a duration longer by microseconds than it is here."""

_MAX_DURATION_NS: Final = MAX_STEP_NS - _ROUNDING_NS


def validate_identity(identity: Mapping[str, Any]) -> None:
    """Raises RankFileError."""
    numbers = (identity["local_rank"], identity["attempt"])
    clocks = (identity["wall_ns"], identity["monotonic_ns"])
    if not identity["job_id"] or identity["world_size"] > MAX_WORLD:
        raise RankFileError("impossible rank")
    if not (_within(numbers, MAX_WORLD) and _within(clocks, MAX_SUM)):
        raise RankFileError("impossible rank")


def validate_counters(counters: RankCounters) -> None:
    """Raises RankFileError."""
    totals = (counters.steps, counters.lost, counters.errors)
    times = (counters.step_ns, counters.own_ns, *counters.phases_ns)
    sums = tuple(sum(column) for column in zip(*counters.lanes, strict=True))
    lanes = (number for lane in counters.lanes for number in lane)
    if not (
        _within(totals, MAX_COUNT // 2) and _within(times, MAX_SUM) and _within((*lanes, *sums, counters.work), MAX_SUM)
    ):
        raise RankFileError("impossible counters")


def validate_lanes(lanes: Iterable[Lane]) -> None:
    """Raises RankFileError."""
    if not _within((lane.peer + 1 for lane in lanes), MAX_WORLD):  # -1: no peer
        raise RankFileError("impossible peer")


def validate_beat(beat: BeatRecord | None) -> None:
    """Raises RankFileError."""
    if beat is None:
        return
    clocks = (beat.at_ns, beat.asked_ns, *(group.moved_ns for group in beat.groups))
    numbers = (number + 1 for group in beat.groups for number in group[1:4])  # -1: not reported
    entered = (number for lane in beat.lanes for number in lane)
    known = 0 <= beat.flight_recorder < len(FLIGHT_RECORDER)
    times = _within(clocks, MAX_SUM) and _within((beat.interval_ns,), MAX_STEP_NS)
    if not (known and times and _within((*numbers, *entered), MAX_COUNT)):
        raise RankFileError("impossible beat")


def is_valid_step(step: Step) -> bool:
    """Returns whether the step, each of its phases and its waiting have durations that are possible."""
    number, start, end, phases, waited, work = step
    return (
        0 <= number <= MAX_COUNT
        and 0 <= start <= end <= MAX_SUM
        and end - start <= _MAX_DURATION_NS
        and 0 <= waited <= _MAX_DURATION_NS
        and min(phases) >= 0
        and max(phases) <= _MAX_DURATION_NS
        and 0 <= work <= MAX_COUNT
    )


def _within(numbers: Iterable[int], most: int) -> bool:
    every = tuple(numbers)
    return not every or (min(every) >= 0 and max(every) <= most)


_MAX_BEAT_NS: Final = 10**9  # between two beats, whatever the file says
_NO_COUNTERS: Final = RankCounters(0, -1, 0, 0, (0,) * len(PHASES), 0, 0, 0, 0, ())


class Now(NamedTuple):
    """One moment on the clock of the rank files (CLOCK_MONOTONIC) and in Unix time; nanoseconds."""

    monotonic_ns: int
    wall_ns: int


class RankSnapshot(NamedTuple):
    """One rank file as read at one moment, without its steps. `started_ns`: when the rank started, Unix time.
    `idle_ns`: time since the rank's last progress; negative where that is still to come, as in a file from before a
    reboot. `ahead_ns`: what clock_ahead_ns() says of its process, while it lived."""

    path: str
    row: RankRow
    started_ns: int
    idle_ns: int
    ahead_ns: int = 0


class _Writer(NamedTuple):
    """The process that holds the file's lock. `pid` 0: not visible from this pid namespace. `process` None: what the
    kernel knows of it is not visible either, or there is no such process."""

    pid: int
    process: ProcessInfo | None
    alive: bool


@dataclasses.dataclass(frozen=True)
class _Contents:
    """The content of a rank file, validated. `collective` and `phase` are the live words of the collective in flight
    and the phase; `progress_ns` is the last progress on CLOCK_MONOTONIC."""

    owner: int
    identity: Mapping[str, Any]
    lanes: tuple[Lane, ...]
    counters: RankCounters
    beat: BeatRecord | None
    facts: dict[str, Any]
    collective: CollectiveInFlight | None
    phase: int
    progress_ns: int

    def unix_seconds(self, monotonic_ns: int, now: Now) -> float:
        """Converts a time of this file to Unix time by its age, so that a clock that was set since the rank started
        makes nothing older or younger. No event is in the future: the result is at most `now`."""
        return min(max(now.wall_ns - now.monotonic_ns + monotonic_ns, 0), now.wall_ns) / 1e9


def clock_ahead_ns(pid: int) -> int:
    """The nanoseconds by which a process's CLOCK_MONOTONIC is ahead of this one's: a container runtime, or CRIU when it
    restores a process, may have put it into a time namespace (time_namespaces(7)). 0 where the kernel does not tell."""
    return _offset_ns(str(pid)) - _offset_ns("self")


def _offset_ns(pid: str) -> int:
    try:
        found = _MONOTONIC.search(read_text(f"/proc/{pid}/timens_offsets"))
    except OSError:  # gone, or a kernel without time namespaces
        return 0
    return int(found[1]) * 10**9 + int(found[2]) if found else 0


_MONOTONIC: Final = re.compile(r"^(?:monotonic|1)\s+(-?\d{1,10})\s+(\d{1,9})$", re.MULTILINE)


def read_rank(
    path: str, node: str, now: Now, exits: ExitWatch | None = None, cpu: CpuWaits | None = None, ahead_ns: int = 0
) -> RankSnapshot:
    """Reads the rank file at `path`, without its steps, has `exits` watch its writer, and `cpu` sample it. `ahead_ns`:
    its writer's, should that be gone. Raises RankFileError where the file is rejected."""
    with RankFileReader(path) as file:
        writer = _find_writer(file)
        if exits is not None and writer.pid:
            exits.watch(path, writer.pid, lambda: file.lock_holder() == writer.pid)
        if writer.pid:
            ahead_ns = clock_ahead_ns(writer.pid)
        now = now._replace(monotonic_ns=now.monotonic_ns + ahead_ns)  # as the writer's clock has it
        finished, left = file.finished(), file.left()
        contents = _read_contents(file)
    moment = None if writer.alive else _last_moment(contents, now)
    watched = exits.exit_of(path) if exits is not None else None
    noted = contents.facts.get(ENDING)
    end = None if moment is None else rank_end(noted, watched, moment)
    well = end is None or (finished and not is_failure(end)) or (left and is_harmless(end, noted))
    state = "running" if writer.alive else "finished" if well else "died"
    if end is not None and state == "finished":  # it closed its file, as Python does where it leaves with status 0
        end = structs.replace(end, exit_code=0)
    row = _row(contents, node, writer, state, now, end)
    if cpu is not None and writer.pid and writer.process:
        row = structs.replace(row, cpu_wait=cpu.sample(path, writer.pid, row.owner))
    return RankSnapshot(path, row, contents.identity["wall_ns"], now.monotonic_ns - contents.progress_ns, ahead_ns)


def read_steps(snapshot: RankSnapshot, since_ns: int, max_steps: int) -> list[Step]:
    """Reads the newest `max_steps` steps that ended at or after `since_ns`, on this process's CLOCK_MONOTONIC. Returns
    none where the path is another rank's file by now."""
    ahead = snapshot.ahead_ns
    expected = (snapshot.row.owner, snapshot.started_ns, snapshot.row.job_id, snapshot.row.rank)
    try:
        with RankFileReader(snapshot.path) as file:
            identity = file.identity
            if (file.owner, identity["wall_ns"], identity["job_id"], identity["rank"]) != expected:
                return []
            steps = file.steps(since_ns + ahead)[-max_steps:]
    except RankFileError:
        return []
    here = (it._replace(start=it.start - ahead, end=it.end - ahead) for it in steps) if ahead else steps
    return [step for step in here if is_valid_step(step)]


def _find_writer(file: RankFileReader) -> _Writer:
    """Returns who holds the file's lock. Raises RankFileError where that is not a process of the file's owner. The
    holder is read again after the process: it may have ended meanwhile, and its pid may be another process's."""
    for _ in range(3):
        pid = file.lock_holder()
        if not pid:  # no writer, or one in a pid namespace that is hidden from us: no process to compare the owner with
            return _Writer(0, None, pid is not None)
        process = read_process_info(pid)
        if file.lock_holder() == pid:
            if process is not None and file.owner not in process.uids:
                raise RankFileError("not its owner's process")
            return _Writer(pid, process, True)
    raise RankFileError("the writer changes")


def _read_contents(file: RankFileReader) -> _Contents:
    """Raises RankFileError where the contents are not valid."""
    live = file.live_state()
    contents = _Contents(
        owner=file.owner,
        identity=file.identity,
        lanes=file.lanes(),
        counters=file.counters() or _NO_COUNTERS,
        beat=file.beat(),
        facts=file.facts(),
        collective=live.collective,
        phase=live.phase,
        progress_ns=live.progress_ns or file.identity["monotonic_ns"],
    )
    validate_identity(contents.identity)
    validate_counters(contents.counters)
    validate_lanes(contents.lanes)
    validate_beat(contents.beat)
    return contents


def _last_moment(contents: _Contents, now: Now) -> LastMoment:
    """The last that the file itself tells of its writer: it lived until then, and at most a beat longer."""
    beat = contents.beat
    signs = (contents.progress_ns, beat.at_ns if beat else 0)
    interval_ns = min(beat.interval_ns, _MAX_BEAT_NS) if beat else _MAX_BEAT_NS
    offset = (now.wall_ns - now.monotonic_ns) / 1e9
    at = contents.unix_seconds(max(signs) + interval_ns, now)
    return LastMoment(at, interval_ns / 1e9, offset, now.wall_ns / 1e9)


def _row(contents: _Contents, node: str, writer: _Writer, state: str, now: Now, end: RankEnd | None) -> RankRow:
    identity, counters, beat = contents.identity, contents.counters, contents.beat
    finished, gpu = state == "finished", contents.facts.get(GPU) or identity.get("gpu")
    return RankRow(
        job_id=identity["job_id"],
        rank=identity["rank"],
        local_rank=identity["local_rank"],
        world_size=identity["world_size"],
        node=node,  # of this machine, not of the file: in a pod, the file has the pod's host name
        gpu=gpu if isinstance(gpu, str) else None,
        attempt=identity["attempt"],
        owner=contents.owner,
        pid=writer.pid,
        cgroup=writer.process.cgroup if writer.process else "",
        state=state,
        steps=counters.steps,
        step_seconds=counters.step_ns / 1e9,
        own_seconds=counters.own_ns / 1e9,
        phase_seconds=tuple(phase_ns / 1e9 for phase_ns in counters.phases_ns),
        last_progress_timestamp_seconds=contents.unix_seconds(contents.progress_ns, now),
        collectives=_totals(contents.lanes, counters),
        in_flight=None if finished else _in_flight(contents.collective, contents.lanes, now),
        phase=PHASES[contents.phase] if not finished and 0 <= contents.phase < len(PHASES) else None,
        lost=counters.lost + counters.errors,
        stopped=writer.process is not None and writer.process.stopped,
        beat=None if beat is None or (finished and not _is_last(contents)) else _beat(beat, contents.lanes, now),
        last_beat_timestamp_seconds=contents.unix_seconds(beat.at_ns, now) if beat else None,
        facts={name: value for name, value in contents.facts.items() if name != ENDING},
        end=end,
    )


def _is_last(contents: _Contents) -> bool:
    """Whether the beat is the one with which the writer closed the file: nothing came after it."""
    return contents.beat is not None and contents.beat.at_ns >= contents.progress_ns


def _totals(lanes: tuple[Lane, ...], counters: RankCounters) -> tuple[CollectiveTotal, ...]:
    by_role = sum_collectives(((lane.op, lane.role) for lane in lanes), counters.lanes)
    return tuple(CollectiveTotal(it.op, it.group, it.count, it.seconds, it.bytes) for it in by_role)


def _in_flight(collective: CollectiveInFlight | None, lanes: tuple[Lane, ...], now: Now) -> InFlight | None:
    if collective is None or not 0 <= collective.lane < len(lanes):
        return None
    lane = lanes[collective.lane]
    return InFlight(lane.op, lane.group, collective.sequence, _age_seconds(collective.issued_ns, now), lane.peer)


def _beat(beat: BeatRecord, lanes: tuple[Lane, ...], now: Now) -> BeatRow:
    pairs = zip(lanes, beat.lanes, strict=False)
    return BeatRow(
        age_seconds=_age_seconds(beat.at_ns, now),
        interval_seconds=beat.interval_ns / 1e9,
        flight_recorder=FLIGHT_RECORDER[beat.flight_recorder],
        lanes=tuple(LaneProgress(lane.op, lane.group, *numbers, lane.peer) for lane, numbers in pairs),
        groups=tuple(
            GroupProgress(it.name, it.enqueued, it.started, it.completed, _seconds(beat.asked_ns - it.moved_ns))
            for it in beat.groups
        ),
        groups_age_seconds=_age_seconds(beat.asked_ns, now) if beat.asked_ns else None,
    )


def _age_seconds(monotonic_ns: int, now: Now) -> float:
    return _seconds(now.monotonic_ns - monotonic_ns)


def _seconds(nanoseconds: int) -> float:
    return min(max(0, nanoseconds), MAX_STEP_NS) / 1e9
