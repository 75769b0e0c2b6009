"""Validates what an agent sent. Right types are not enough: a number can be absurd and a name a megabyte long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from laggard.collector.scrape.bounds import (
    MAX_CLOCK,
    MAX_COUNT,
    MAX_SECONDS,
    MAX_TEXT,
    MAX_WORLD,
    all_within,
    check_length,
    require,
    within,
)
from laggard.collector.scrape.packed_steps import is_possible, steps_by_rank, unpacked
from laggard.collector.scrape.ras_validation import check_ras
from laggard.locate.step_tables import NO_STEPS, Table
from laggard.model import MAX_FINDINGS, MAX_SUMMARY, REPORT_SCHEMA, Finding, RankEnd, Report, Verdict
from laggard.rankfile.unseen import STARTING, UNSEEN
from laggard.wire import WireError, decode, encode
from laggard.wire.ranks import (
    RANKS_SCHEMA,
    BeatRow,
    CpuWait,
    InFlight,
    PackedSteps,
    RankRow,
    RanksDocument,
    UnseenProcess,
)

T = TypeVar("T")

MAX_RANKS = 1024
MAX_STEPS = 8192  # of one rank in one answer
MAX_LANES = 256
MAX_NEIGHBOURS = 8
MAX_FACTS = 64 << 10  # bytes
MAX_PROSE = 4096

MAX_UNSEEN = 64

STATES = ("running", "finished", "died")
_NO_STATE = f"state is none of {', '.join(STATES)}"

# msgspec (0.22) learns a type at its first use, and crashes where another thread uses it meanwhile. Agents' answers are
# decoded in threads, the first ones all at once: so both types are learned here.
for _kind in (RanksDocument, Report):
    msgspec.json.Decoder(_kind)


class RanksAnswer(NamedTuple):
    """An agent's document, and the steps of each of its ranks."""

    document: RanksDocument
    steps: tuple[Table, ...]


def validate_ranks(body: bytes) -> RanksDocument:
    """The ranks document in `body`. Raises WireError that says what is wrong with it."""
    return validate_ranks_answer(body).document


def validate_ranks_answer(body: bytes) -> RanksAnswer:
    """The ranks document in `body`, with its steps as arrays. Raises WireError that says what is wrong with it."""
    document = decode_bounded(body, RanksDocument)
    require(document.schema == RANKS_SCHEMA, f"schema is not {RANKS_SCHEMA}")
    check_length("node", document.node)
    check_length("boot_id", document.boot_id)
    require(bool(document.node), "node is empty")
    require(within(document.next, MAX_CLOCK), "next is no time")
    require(within(document.now or 0.0, MAX_CLOCK), "now is no time")
    require(len(document.ranks) <= MAX_RANKS, f"more than {MAX_RANKS} ranks")
    for row in document.ranks:
        _check_rank(row)
    steps = _steps(document.ranks, document.steps)
    _check_findings(document.findings)
    _check_unseen(document.unseen)
    if document.ras:
        check_ras(document.ras)
    return RanksAnswer(document, steps)


def _steps(ranks: Sequence[RankRow], steps: PackedSteps | None) -> tuple[Table, ...]:
    """The steps of each rank, from the columns of all."""
    if steps is None:
        return (NO_STEPS,) * len(ranks)
    table = unpacked(steps, len(ranks), MAX_STEPS)
    by_rank = tuple(steps_by_rank(table, steps.counts))
    if not is_possible(table):
        wrong = (row for row, its in zip(ranks, by_rank, strict=True) if not is_possible(its))
        raise WireError(f"rank {next(wrong).rank}: a number of a step is out of range")
    return by_rank


def validate_report(body: bytes) -> Report:
    """The report in `body`. Raises WireError that says what is wrong with it."""
    report = decode_bounded(body, Report)
    require(report.schema == REPORT_SCHEMA, f"schema is not {REPORT_SCHEMA}")
    require(report.verdict in tuple(Verdict), "verdict is unknown to us")
    check_length("node", report.node)
    _check_findings(report.findings)
    return report


def _check_findings(findings: tuple[Finding, ...]) -> None:
    require(len(findings) <= MAX_FINDINGS, f"more than {MAX_FINDINGS} findings")
    for finding in findings:
        check_length("code", finding.code)
        check_length("device", finding.device)
        check_length("doc", finding.doc)
        require(len(finding.summary) <= MAX_SUMMARY, "a summary of a finding is too long")


def decode_bounded(body: bytes, kind: type[T]) -> T:
    """The document in `body`; raises WireError."""
    try:
        return decode(body, kind)
    except WireError as error:
        raise WireError(f"not the JSON expected: {error}") from None
    except (RecursionError, OverflowError, MemoryError):
        raise WireError("not the JSON expected: nested too deeply or a number too large") from None


def _check_rank(row: RankRow) -> None:
    try:
        _check_numbers(row)
        if row.in_flight:
            _check_in_flight(row.in_flight)
        if row.cpu_wait:
            _check_cpu_wait(row.cpu_wait)
        if row.end:
            _check_end(row.end)
        if row.beat:
            _check_beat(row.beat)
        require(len(encode(row.facts)) <= MAX_FACTS, f"the facts are more than {MAX_FACTS} bytes")
    except WireError as error:  # which rank it is is written only now: most have nothing wrong
        where = f"rank {row.rank}" if within(row.rank, MAX_WORLD) else "a rank"
        raise WireError(f"{where}: {error}") from None


def _check_numbers(row: RankRow) -> None:
    if not _is_possible(row):
        _say_what_is_impossible(row)


def _is_possible(row: RankRow) -> bool:
    """The conditions of _say_what_is_impossible() in a third of the time: nearly all rows fulfil them."""
    return (
        0 < len(row.job_id) <= MAX_TEXT
        and len(row.node) <= MAX_TEXT
        and len(row.gpu or "") <= MAX_TEXT
        and len(row.phase or "") <= MAX_TEXT
        and len(row.cgroup) <= MAX_PROSE
        and 0 <= row.rank < row.world_size <= MAX_WORLD
        and row.state in STATES
        and 0 <= row.local_rank <= MAX_COUNT
        and 0 <= row.attempt <= MAX_COUNT
        and 0 <= row.owner <= MAX_COUNT
        and 0 <= row.pid <= MAX_COUNT
        and 0 <= row.steps <= MAX_COUNT
        and 0 <= row.lost <= MAX_COUNT
        and 0 <= row.step_seconds <= MAX_CLOCK
        and 0 <= row.own_seconds <= MAX_CLOCK
        and 0 <= row.last_progress_timestamp_seconds <= MAX_CLOCK
        and 0 <= (row.last_beat_timestamp_seconds or 0.0) <= MAX_CLOCK
        and all_within(row.phase_seconds, MAX_CLOCK)
    )


def _say_what_is_impossible(row: RankRow) -> None:
    for name in ("job_id", "node", "gpu", "phase"):
        check_length(name, getattr(row, name) or "")
    check_length("cgroup", row.cgroup, MAX_PROSE)
    require(bool(row.job_id), "job_id is empty")
    require(1 <= row.world_size <= MAX_WORLD, "world_size is out of range")
    if not 0 <= row.rank < row.world_size:
        raise WireError(f"not a rank of {row.world_size}")
    require(row.state in STATES, _NO_STATE)
    for name in ("local_rank", "attempt", "owner", "pid", "steps", "lost"):
        if not within(getattr(row, name), MAX_COUNT):
            raise WireError(f"{name} is out of range")
    seconds = (row.step_seconds, row.own_seconds, *row.phase_seconds, row.last_progress_timestamp_seconds)
    seconds = (*seconds, row.last_beat_timestamp_seconds or 0.0)
    require(all_within(seconds, MAX_CLOCK), "a time is out of range")


def _check_in_flight(it: InFlight) -> None:
    check_length("op", it.op)
    check_length("group", it.group)
    require(within(it.seconds, MAX_SECONDS), "in_flight.seconds is out of range")
    require(within(it.seq, MAX_COUNT), "in_flight.seq is out of range")
    require(within(it.peer + 1, MAX_WORLD), "in_flight.peer is no rank")


def _check_unseen(processes: tuple[UnseenProcess, ...]) -> None:
    require(len(processes) <= MAX_UNSEEN, f"more than {MAX_UNSEEN} unseen processes")
    for each in processes:
        require(each.kind in (STARTING, UNSEEN), "the kind of an unseen process is none")
        require(bool(each.job_id), "the job_id of an unseen process is empty")
        for name in ("job_id", "script", "why"):
            check_length(f"an unseen process: {name}", getattr(each, name))
        require(0 <= each.rank < MAX_WORLD, "an unseen process: rank is out of range")
        require(1 <= each.world_size <= MAX_WORLD, "an unseen process: world_size is out of range")
        require(all_within((each.owner, each.pid), MAX_COUNT), "an unseen process: a number is out of range")
        require(within(each.at, MAX_CLOCK), "an unseen process: at is no time")


def _check_cpu_wait(wait: CpuWait) -> None:
    times = (wait.seconds, wait.running_seconds, wait.queued_seconds, wait.throttled_seconds, wait.stolen_seconds)
    taken = (each.seconds for each in wait.neighbours)
    require(all_within((*times, *taken), MAX_CLOCK), "a time of cpu_wait is out of range")
    require(len(wait.neighbours) <= MAX_NEIGHBOURS, f"more than {MAX_NEIGHBOURS} neighbours")
    for each in wait.neighbours:
        check_length("a neighbour's command", each.command)
        require(all_within((each.pid, each.owner), MAX_COUNT), "a neighbour's pid or owner is out of range")


def _check_end(end: RankEnd) -> None:
    for name in ("signal", "exception", "cause", "kernel"):
        check_length(f"end.{name}", getattr(end, name))
    require(within(end.at_seconds, MAX_CLOCK), "end.at_seconds is no time")
    require(within(end.uncertain_seconds, MAX_SECONDS), "end.uncertain_seconds is out of range")
    require(within(end.exit_code or 0, 255), "end.exit_code is none")


def _check_beat(beat: BeatRow) -> None:
    check_length("flight_recorder", beat.flight_recorder)
    require(len(beat.lanes) <= MAX_LANES and len(beat.groups) <= MAX_LANES, f"more than {MAX_LANES} lanes")
    ages = (beat.age_seconds, beat.groups_age_seconds or 0.0)
    times = (*ages, beat.interval_seconds, *(group.seconds for group in beat.groups))
    require(all_within(times, MAX_SECONDS), "a time of the beat is out of range")
    for lane in beat.lanes:
        if (
            len(lane.op) <= MAX_TEXT
            and len(lane.group) <= MAX_TEXT
            and 0 <= lane.entered <= MAX_COUNT
            and 0 <= lane.done <= MAX_COUNT
            and -1 <= lane.peer < MAX_WORLD
        ):
            continue  # each of the checks below takes as long as all of these
        check_length("op", lane.op)
        check_length("group", lane.group)
        require(all_within((lane.entered, lane.done), MAX_COUNT), "a lane's count is out of range")
        require(within(lane.peer + 1, MAX_WORLD), "a lane's peer is no rank")
    for group in beat.groups:
        check_length("group", group.name)
        numbers = (group.enqueued + 1, group.started + 1, group.completed + 1)
        require(all_within(numbers, MAX_COUNT), "a group's count is out of range")
