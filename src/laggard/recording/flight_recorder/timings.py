"""Turns the dumps of a job's ranks into the arrays from which a hang is localised. Pure.

A dump says what its rank enqueued in each group and what of it is done; when a step began it does not say. What a rank
has dropped, because the recorder keeps the newest records only, it had come to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.constants import PHASES
from laggard.locate.collectives import Collectives, ProcessGroup
from laggard.locate.job_timings import JobTimings, RankState
from laggard.recording.flight_recorder.dump import Dump
from laggard.recording.flight_recorder.groups import Groups, match_groups
from laggard.recording.flight_recorder.queues import miscounted_groups, queues_from_dumps
from laggard.recording.torch_names import UNKNOWN


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
    without_dump = sorted(set(range(world_size)) - {dump.rank for dump in dumps})
    groups = tuple(
        group if matched.declared[place] else group._replace(ranks=(*group.ranks, *without_dump))  # any may be a member
        for place, group in enumerate(matched.groups)
    )
    matched = matched._replace(groups=groups)
    miscounted = miscounted_groups(dumps, matched)
    rows = [_collectives(dump, column, matched, miscounted) for column, dump in enumerate(dumps)]
    timings = _timings(dumps, world_size, groups, _joined(rows))
    return dataclasses.replace(timings, queues=queues_from_dumps(dumps, matched))


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


def _collectives(dump: Dump, column: int, matched: Groups, miscounted: frozenset[int]) -> _Rows:
    """One row for each collective of the dump: those that NCCL launched as one have a record each and one number. The
    size is not known where the recorder may have dropped some of them."""
    records = dump.records
    begun = records.begun | records.done | (not dump.timed)
    places = np.array(matched.places[column], np.int32)
    usable = ~np.isin(places[records.group], sorted(miscounted))
    chosen = np.flatnonzero((records.source < 0) & (records.seq >= 0) & usable)
    group = places[records.group[chosen]]
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


def _rows(rows: Sequence[tuple[int, ...]]) -> _Rows:
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * len(_KINDS)
    return _Rows(*(np.array(values, kind) for values, kind in zip(columns, _KINDS, strict=True)))


def _no_rows() -> _Rows:
    return _rows(())


def _joined(parts: Sequence[_Rows]) -> _Rows:
    columns: list[Any] = [np.concatenate(each) for each in zip(_no_rows(), *parts, strict=True)]
    return _Rows(*columns)
