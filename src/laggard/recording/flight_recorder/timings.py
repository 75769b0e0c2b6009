"""Turns the dumps of a job's ranks into the arrays from which a hang is localised. Pure.

A dump says what its rank enqueued in each group and what of it is done; when a step began it does not say. What a rank
has dropped, because the recorder keeps the newest records only, it had come to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.constants import PHASES
from laggard.locate.collectives import Collectives, ProcessGroup
from laggard.locate.job_timings import JobTimings, RankState
from laggard.locate.order_statistics import distinct
from laggard.recording.flight_recorder.dump import Dump, Status
from laggard.recording.flight_recorder.groups import Groups, match_groups
from laggard.recording.torch_names import UNKNOWN

NOTHING = Status(UNKNOWN, UNKNOWN)


class _Rows(NamedTuple):
    """Records of collectives, sends and receives as columns of equal length, as in Collectives."""

    column: NDArray[np.int32]
    group: NDArray[np.int32]
    op: NDArray[np.int8]
    seq: NDArray[np.int64]
    size: NDArray[np.int64]
    peer: NDArray[np.int32]
    done: NDArray[np.bool_]
    begun: NDArray[np.bool_]


_KINDS: tuple[Any, ...] = (np.int32, np.int32, np.int8, np.int64, np.int64, np.int32, np.bool_, np.bool_)


def _world_size(dumps: Sequence[Dump]) -> int:
    """The number of ranks of the job, as far as its groups and dumps tell."""
    declared = (max(group.members) + 1 for dump in dumps for group in dump.groups if group.members)
    return max(max(declared, default=0), *(dump.rank + 1 for dump in dumps))


def timings_from_dumps(dumps: Sequence[Dump]) -> JobTimings:
    """The job whose ranks wrote `dumps`, ascending by rank, one each. It has no steps."""
    world_size = _world_size(dumps)
    matched = match_groups(dumps, world_size)
    rows = [_collectives(dump, column, matched) for column, dump in enumerate(dumps)]
    rows += [_point_to_point(dump, column, matched) for column, dump in enumerate(dumps)]
    known = _joined(rows)
    dropped, silent = _dropped(dumps, matched, known)
    without_dump = sorted(set(range(world_size)) - {dump.rank for dump in dumps})
    groups = tuple(
        group._replace(
            ranks=tuple(
                rank
                for rank in (*group.ranks, *(() if matched.declared[place] else without_dump))  # any may be a member
                if (rank, place) not in silent
            )
        )
        for place, group in enumerate(matched.groups)
    )
    return _timings(dumps, world_size, groups, _joined([known, dropped]))


def _timings(dumps: Sequence[Dump], world_size: int, groups: tuple[ProcessGroup, ...], rows: _Rows) -> JobTimings:
    count, nothing = len(dumps), np.zeros(len(rows.seq))
    return JobTimings(
        job_id=None,
        world_size=world_size,
        steps=np.zeros(0, np.int64),
        ranks=np.array([dump.rank for dump in dumps], np.int64),
        nodes=(None,) * count,
        gpus=(None,) * count,
        step_seconds=np.zeros((0, count)),
        phase_seconds=np.zeros((0, count, len(PHASES))),
        waited_seconds=np.zeros((0, count)),
        states=(RankState("unknown", None, None, None),) * count,
        findings_by_node={},
        steps_recorded=False,
        collectives=Collectives(
            column=rows.column,
            step=np.full(len(rows.seq), -1, np.int64),
            group=rows.group,
            op=rows.op,
            seq=rows.seq,
            size=rows.size,
            peer=rows.peer,
            start=nothing,
            end=np.where(rows.done, 0.0, np.nan),
            waited=np.full(len(rows.seq), np.nan),
            groups=groups,
            numbered_by_group=True,
            begun=rows.begun,
        ),
    )


def _collectives(dump: Dump, column: int, matched: Groups) -> _Rows:
    """One row for each collective of the dump: those that NCCL launched as one have a record each and one number. The
    size is not known where the recorder may have dropped some of them. Without TORCH_NCCL_ENABLE_TIMING no record
    tells whether the device began it."""
    records = dump.records
    begun = records.begun | records.done | (not records.begun.any())
    chosen = np.flatnonzero((records.source < 0) & (records.seq >= 0))
    group = np.array(matched.places[column], np.int32)[records.group[chosen]]
    seq = records.seq[chosen]
    order = np.lexsort((seq, group))
    chosen, group, seq = chosen[order], group[order], seq[order]
    new = np.ones(len(seq), np.bool_)
    new[1:] = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])
    first = np.flatnonzero(new)
    if not len(first):
        return _no_rows()
    size = records.size[chosen]
    total = np.where(np.minimum.reduceat(size, first) < 0, UNKNOWN, np.add.reduceat(size, first))
    if dump.wrapped:
        total[chosen[first] == chosen.min()] = UNKNOWN
    return _Rows(
        np.full(len(first), column, np.int32),
        group[first],
        np.maximum.reduceat(records.op[chosen], first),
        seq[first],
        total,
        np.full(len(first), UNKNOWN, np.int32),
        np.logical_and.reduceat(records.done[chosen], first),
        np.logical_or.reduceat(begun[chosen], first),
    )


def _point_to_point(dump: Dump, column: int, matched: Groups) -> _Rows:
    """The sends and receives of the dump that are not done. Those that are done have met, so the first that is not done
    of a pair and direction is the first on both sides; torch numbers them by group, whoever the other side is."""
    records = dump.records
    rows: list[tuple[int, ...]] = []
    counts: dict[tuple[int, int], int] = {}
    for place in np.flatnonzero((records.source >= 0) & ~records.done).tolist():
        group = matched.places[column][records.group[place]]
        members = matched.groups[group].ranks
        source, target = int(records.source[place]), int(records.target[place])
        if not matched.declared[group] or max(source, target) >= len(members):
            continue
        pair = members[source], members[target]
        if dump.rank not in pair or pair[0] == pair[1]:
            continue
        number = counts[pair] = counts.get(pair, -1) + 1
        peer = pair[1] if pair[0] == dump.rank else pair[0]
        rows.append((column, group, int(records.op[place]), number, int(records.size[place]), peer, False, True))
    return _rows(rows)


def _dropped(dumps: Sequence[Dump], matched: Groups, known: _Rows) -> tuple[_Rows, set[tuple[int, int]]]:
    """Rows for what no record is there of, as far as others stand in it or the rank's own counts tell; and, as ranks
    with a group, of whom nothing is known there."""
    waited_in = _waited_in(known)
    present = _present(known)
    rows: list[tuple[int, ...]] = []
    silent: set[tuple[int, int]] = set()
    for column, dump in enumerate(dumps):
        status = {matched.places[column][place]: each for place, each in dump.status.items()}
        for group in sorted({*waited_in, *status}):
            here = present.get((column, group), set())
            counts = NOTHING if here else status.get(group, NOTHING)  # they count sends, too, where there are any
            passed = max(here, default=0) - 1 if here else counts.completed
            came = [number for number in waited_in.get(group, ()) if number <= passed and number not in here]
            rows += [(column, group, UNKNOWN, number, UNKNOWN, UNKNOWN, True, True) for number in came]
            if counts.enqueued > max(counts.completed, 0):
                number = max(counts.completed, 0) + 1
                rows.append((column, group, UNKNOWN, number, UNKNOWN, UNKNOWN, False, True))
            if not here and counts == NOTHING and dump.wrapped:
                silent.add((dump.rank, group))
    return _rows(rows), silent


def _waited_in(rows: _Rows) -> dict[int, list[int]]:
    """The numbers, by group, of the collectives that are not done somewhere."""
    chosen = (rows.peer < 0) & ~rows.done
    return {
        group: distinct(rows.seq[chosen & (rows.group == group)]).tolist()
        for group in distinct(rows.group[chosen]).tolist()
    }


def _present(rows: _Rows) -> dict[tuple[int, int], set[int]]:
    """The numbers of the collectives that a rank (column) has records of in a group."""
    found: dict[tuple[int, int], set[int]] = {}
    chosen = rows.peer < 0
    columns = (rows.column[chosen], rows.group[chosen], rows.seq[chosen])
    for column, group, seq in zip(*(values.tolist() for values in columns), strict=True):
        found.setdefault((column, group), set()).add(seq)
    return found


def _rows(rows: Sequence[tuple[int, ...]]) -> _Rows:
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * len(_KINDS)
    return _Rows(*(np.array(values, kind) for values, kind in zip(columns, _KINDS, strict=True)))


def _no_rows() -> _Rows:
    return _rows(())


def _joined(parts: Sequence[_Rows]) -> _Rows:
    columns: list[Any] = [np.concatenate(each) for each in zip(_no_rows(), *parts, strict=True)]
    return _Rows(*columns)
