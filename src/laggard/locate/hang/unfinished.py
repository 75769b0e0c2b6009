"""Finds who never came to a collective that others are in, or came and never finished it, in a recording. Pure.

A recording holds each collective that a rank entered; one that it never left has no end. Collectives are matched by
group, operation and number (by group and number, where that counts all operations), sends and receives by pair and
number. Who is waited for and waits for nobody is the root; who waits for a rank that is not seen is none.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.kit.words import counted, ranks_text
from laggard.locate.collectives import Collectives
from laggard.locate.hang.hangs import ranks_in_cycles
from laggard.locate.hang.waits import deadlock_note, has_left
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import distinct
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

SEND, RECV = OPS.index("send"), OPS.index("recv")

MAX_CULPRITS = 16
"""The most ranks or machines that are named as never having come: where there are more, the job was ended as a
whole."""

CONFIDENCE = 0.8
"""The confidence that a rank which never came hangs. It is not recorded how long the others had waited: the job may
have been ended before the rank could come."""

SHARED_CONFIDENCE = 0.5
"""The confidence where several ranks came and none of them finished: any of them, or the network, may stand still."""


class _Meeting(NamedTuple):
    """A collective, or a send and its receive: what its members meet in."""

    op: int  # -1 where a collective's number counts all operations of its group
    group: int  # -1 for sends and receives
    source: int  # the columns of who sends and who receives; -1 for collectives
    target: int
    seq: int


@dataclasses.dataclass
class _Attendance:
    """The columns of a meeting's members, and of those that came and that finished it. `step`: in which it was, -1
    where that is not known. `unseen`: the members' ranks that have no column. `enqueued`: who came on the host while
    the device has not begun it, though others' have. `op`: an operation of its records, -1 where none tells it."""

    members: frozenset[int]
    step: int
    unseen: frozenset[int] = frozenset()
    op: int = -1
    came: set[int] = dataclasses.field(default_factory=set)
    finished: set[int] = dataclasses.field(default_factory=set)
    enqueued: set[int] = dataclasses.field(default_factory=set)

    @property
    def missing(self) -> frozenset[int]:
        return self.members - self.came


def unfinished_collectives(timings: JobTimings) -> PartialVerdict:
    """The ranks at the root of what never finished, each with those that wait for it."""
    collectives = timings.collectives
    if collectives is None:
        return NOTHING_FOUND
    stuck = _stuck(collectives, timings)
    if not len(stuck):
        return NOTHING_FOUND
    meetings = _attendance(collectives, timings, stuck)
    waits_for: dict[int, frozenset[int]] = {}
    for attendance in meetings.values():
        for column in attendance.came - attendance.finished:
            waits_for[column] = waits_for.get(column, frozenset()) | attendance.missing
    unseen = [each for each in meetings.values() if each.unseen and not each.finished]
    for_unseen = frozenset().union(*(each.came for each in unseen))
    blocked = {column for column, missing in waits_for.items() if missing} | for_unseen
    awaited = frozenset().union(*waits_for.values())
    roots = sorted(awaited - blocked)
    if not roots and for_unseen:
        return PartialVerdict(notes=(_unseen_note(timings, collectives, meetings, len(blocked)),))
    if awaited and not roots:
        cycle = ranks_in_cycles(waits_for)
        return PartialVerdict(notes=(deadlock_note(timings, cycle),) if cycle else ())
    together = _together(timings, meetings, roots)
    if not roots or len(together) > MAX_CULPRITS:
        return PartialVerdict(notes=(_unfinished_note(timings, collectives, meetings),))
    return PartialVerdict(tuple(_culprit(timings, collectives, meetings, each, blocked) for each in together))


def _stuck(collectives: Collectives, timings: JobTimings) -> NDArray[np.int64]:
    """The records of collectives that were the rank's last: what it left unfinished and went on from, it had not waited
    for, and so it is with all of a rank that ended with status 0. Where the source tells no steps, all that is not
    finished."""
    known = ~np.isfinite(collectives.end) & (collectives.seq >= 0)
    ended = [state.state == "finished" and state.end is not None for state in timings.states]
    known &= ~np.array(ended, np.bool_)[collectives.column] & ~_passed(collectives, known)
    if not timings.steps_recorded:
        return np.flatnonzero(known)
    finished = np.isfinite(collectives.end) & (collectives.step >= 0)
    last_step = np.full(len(timings.ranks), -1, np.int64)
    np.maximum.at(last_step, collectives.column[finished], collectives.step[finished])
    for column, state in enumerate(timings.states):
        if state.step is not None:
            last_step[column] = max(last_step[column], state.step)
    known &= collectives.op >= 0
    of_last_step = (collectives.step >= 0) & (collectives.step >= last_step[collectives.column])
    return np.flatnonzero(known & (of_last_step | ((collectives.step < 0) & _begun_last(collectives))))


def _passed(collectives: Collectives, unfinished: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[C]: which of the unfinished collectives the rank went on from: it finished a later one of the same group and
    operation, to which all had to come after this one. Nobody waits for it, as for those that DDP's join() adds."""
    passed = np.zeros(len(unfinished), np.bool_)
    candidates = np.flatnonzero(unfinished & (collectives.op != SEND) & (collectives.op != RECV))
    if not len(candidates):
        return passed
    op = np.full_like(collectives.op, -1) if collectives.numbered_by_group else collectives.op
    groups = len(collectives.groups)
    lanes = (collectives.column.astype(np.int64) * groups + collectives.group) * (len(OPS) + 1) + op
    wanted = distinct(lanes[candidates])
    place = np.minimum(np.searchsorted(wanted, lanes), len(wanted) - 1)
    finished = np.isfinite(collectives.end) & (wanted[place] == lanes)
    newest = np.full(len(wanted), -1, np.int64)
    np.maximum.at(newest, place[finished], collectives.seq[finished])
    passed[candidates] = newest[place[candidates]] > collectives.seq[candidates]
    return passed


def _begun_last(collectives: Collectives) -> NDArray[np.bool_]:
    """[C]: of which records the rank began nothing later that it finished: where none tells its step, this does."""
    finished = np.flatnonzero(np.isfinite(collectives.end))
    latest = np.full(int(collectives.column.max(initial=-1)) + 1, -np.inf)
    np.fmax.at(latest, collectives.column[finished], collectives.start[finished])
    last: NDArray[np.bool_] = collectives.start >= latest[collectives.column]
    return last


def _attendance(collectives: Collectives, timings: JobTimings, stuck: NDArray[np.int64]) -> dict[_Meeting, _Attendance]:
    """The ranks that came to the meetings in which any rank is stuck."""
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    members = _Members(collectives, columns)
    found: dict[_Meeting, _Attendance] = {}
    for record in stuck.tolist():
        meeting = _meeting(collectives, record, columns)
        if meeting is not None and meeting not in found:
            columns_of, unseen = members.of(meeting)
            found[meeting] = _Attendance(columns_of, int(collectives.step[record]), unseen)
    begun = collectives.begun
    seqs = distinct(collectives.seq[stuck])
    for record in np.flatnonzero(np.isin(collectives.seq, seqs)).tolist():
        meeting = _meeting(collectives, record, columns)
        attendance = found.get(meeting) if meeting is not None else None
        if attendance is not None:
            column = int(collectives.column[record])
            (attendance.came if begun is None or begun[record] else attendance.enqueued).add(column)
            attendance.op = max(attendance.op, int(collectives.op[record]))
            if np.isfinite(collectives.end[record]):
                attendance.finished.add(column)
    for attendance in found.values():
        if not attendance.came:  # whether a device began anything is not recorded
            attendance.came, attendance.enqueued = attendance.enqueued, set()
    return found


def _meeting(collectives: Collectives, record: int, columns: Mapping[int, int]) -> _Meeting | None:
    """The meeting that the record is of; None for a send to a rank that is not seen."""
    op, seq, column = int(collectives.op[record]), int(collectives.seq[record]), int(collectives.column[record])
    if op not in (SEND, RECV):
        return _Meeting(-1 if collectives.numbered_by_group else op, int(collectives.group[record]), -1, -1, seq)
    peer = columns.get(int(collectives.peer[record]))
    if peer is None:
        return None
    source, target = (column, peer) if op == SEND else (peer, column)
    return _Meeting(SEND, -1, source, target, seq)


class _Members:
    """The ranks that have to come to a meeting: columns, and the ranks of those that have none."""

    def __init__(self, collectives: Collectives, columns: Mapping[int, int]) -> None:
        self._collectives, self._columns = collectives, columns
        self._known: dict[int, tuple[frozenset[int], frozenset[int]]] = {}

    def of(self, meeting: _Meeting) -> tuple[frozenset[int], frozenset[int]]:
        """The columns, and the ranks without a column."""
        if meeting.group < 0:
            return frozenset((meeting.source, meeting.target)), frozenset()
        if meeting.group not in self._known:
            self._known[meeting.group] = self._of_group(meeting.group)
        return self._known[meeting.group]

    def _of_group(self, group: int) -> tuple[frozenset[int], frozenset[int]]:
        declared = self._collectives.groups[group].ranks
        if not declared:
            came = self._collectives.column[self._collectives.group == group]
            return frozenset(distinct(came).tolist()), frozenset()
        columns = frozenset(self._columns[rank] for rank in declared if rank in self._columns)
        return columns, frozenset(rank for rank in declared if rank not in self._columns)


class _Root(NamedTuple):
    """Ranks (columns) that are waited for together. `inside`: what they came to and never finished."""

    columns: tuple[int, ...]
    inside: _Meeting | None
    whole_machine: bool


def _together(timings: JobTimings, meetings: Mapping[_Meeting, _Attendance], roots: Sequence[int]) -> list[_Root]:
    """The roots: all ranks of a machine, where they are its ranks and none came, as one, and so those that are in the
    same collective, which none of its members finished."""
    machine = {column: timings.nodes[column] for column in roots}
    sizes, here = Counter(timings.nodes), Counter(machine.values())
    grouped: dict[object, list[int]] = {}
    inside_of: dict[int, _Meeting | None] = {}
    for column in roots:
        inside = next((it for it, each in meetings.items() if column in each.came - each.finished), None)
        node = machine[column]
        whole = inside is None and node is not None and 1 < here[node] == sizes[node] < len(timings.nodes)
        nobody = inside is not None and not meetings[inside].finished
        inside_of[column] = inside
        grouped.setdefault(inside if nobody else node if whole else column, []).append(column)
    return [
        _Root(tuple(columns), inside_of[columns[0]], len(columns) > 1 and inside_of[columns[0]] is None)
        for columns in grouped.values()
    ]


def _culprit(
    timings: JobTimings,
    collectives: Collectives,
    meetings: Mapping[_Meeting, _Attendance],
    root: _Root,
    blocked: set[int],
) -> Culprit:
    columns = set(root.columns)
    waited_in = min(
        (item for item in meetings.items() if columns & item[1].missing), key=lambda item: (item[1].step, item[0].seq)
    )
    nodes = {timings.nodes[column] for column in columns}
    node = nodes.pop() if len(nodes) == 1 else None
    victims = sorted(int(timings.ranks[column]) for column in blocked - columns)
    meeting, attendance = waited_in if root.inside is None else (root.inside, meetings[root.inside])
    gone = all(has_left(timings.states[column]) for column in columns)
    return Culprit(
        kind="dead" if gone else "hung",
        ranks=tuple(int(timings.ranks[column]) for column in root.columns),
        node=node,
        gpu=timings.gpus[root.columns[0]] if len(columns) == 1 else None,
        phase="collective" if root.inside is not None else None,
        group=collectives.groups[meeting.group].name if meeting.group >= 0 else None,
        since_step=attendance.step if attendance.step >= 0 else None,
        confidence=CONFIDENCE if len(columns) == 1 or root.whole_machine else SHARED_CONFIDENCE,
        evidence=tuple(_evidence(timings, collectives, meetings, waited_in, root)),
        victims=tuple(victims[:MAX_NAMED_RANKS]),
        end=timings.states[root.columns[0]].end if gone else None,
    )


def _evidence(
    timings: JobTimings,
    collectives: Collectives,
    meetings: Mapping[_Meeting, _Attendance],
    waited_in: tuple[_Meeting, _Attendance],
    root: _Root,
) -> Iterator[str]:
    if root.whole_machine:
        yield f"none of the {len(root.columns)} ranks of the machine came"
    if root.inside is not None:
        finished = "others" if meetings[root.inside].finished else "nobody"
        name = _name(timings, collectives, root.inside, meetings[root.inside])
        yield f"came to {name}, which {finished} finished, and never finished it"
    meeting, attendance = waited_in
    waiting = ranks_text(int(timings.ranks[column]) for column in attendance.came - attendance.finished)
    step = f" in step {attendance.step}" if attendance.step >= 0 else ""
    name = _name(timings, collectives, meeting, attendance)
    if set(root.columns) <= attendance.enqueued:
        yield f"enqueued {name}{step}, which its device never began, and in which {waiting} stayed"
    else:
        yield f"never came to {name}{step}, in which {waiting} stayed"


def _name(timings: JobTimings, collectives: Collectives, meeting: _Meeting, attendance: _Attendance) -> str:
    if meeting.group >= 0:
        op = OPS[attendance.op] if attendance.op >= 0 else "collective"
        return f"{op} number {meeting.seq} of {collectives.groups[meeting.group].name}"
    source, target = (int(timings.ranks[column]) for column in (meeting.source, meeting.target))
    return f"the send number {meeting.seq} from rank {source} to rank {target}"


def _unseen_note(
    timings: JobTimings, collectives: Collectives, meetings: Mapping[_Meeting, _Attendance], waiting: int
) -> Note:
    """The note on a hang at whose root is a rank of which nothing is recorded."""
    meeting, first = min(
        (item for item in meetings.items() if item[1].unseen and not item[1].finished),
        key=lambda item: (len(item[1].unseen), item[0].seq),
    )
    stayed = ranks_text(int(timings.ranks[column]) for column in first.came - first.finished)
    name = _name(timings, collectives, meeting, first)
    others = f"; {counted(waiting, 'rank')} wait in all" if waiting > len(first.came - first.finished) else ""
    text = (
        f"{stayed} never finished {name}, to which all came that are seen; nothing is recorded of "
        f"{ranks_text(first.unseen)}, which may have died or hang{others}"
    )
    return Note("unseen_ranks", text, ranks=tuple(sorted(first.unseen))[:MAX_NAMED_RANKS])


def _unfinished_note(timings: JobTimings, collectives: Collectives, meetings: Mapping[_Meeting, _Attendance]) -> Note:
    stuck = sorted({int(timings.ranks[column]) for each in meetings.values() for column in each.came - each.finished})
    first = min(meetings, key=lambda meeting: (meetings[meeting].step, meeting.seq), default=None)
    name = _name(timings, collectives, first, meetings[first]) if first is not None else ""
    where = f": {name}" + (" and others" if len(meetings) > 1 else "") if name else ""
    text = (
        f"{counted(len(stuck), 'rank')} never finished the last collectives, to which all came{where}; the job was "
        "ended in them, or the network or a device among them stands still"
    )
    return Note("unfinished", text, ranks=tuple(stuck[:MAX_NAMED_RANKS]))
