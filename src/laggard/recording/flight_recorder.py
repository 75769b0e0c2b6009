"""Reads the Flight Recorder dumps of a job, a pickle or JSON of each rank, to the arrays from which a hang is
localised.

A dump does not say whose it is: its rank is the number that ends the file's name. A record that is damaged costs that
record, and a dump that is, that rank; both are told. A dump says what its rank enqueued in each group and what of it is
done; when a step began it does not say. What a rank has dropped, because the recorder keeps the newest records only, it
had come to.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES
from laggard.kit.errors import UsageError
from laggard.kit.majority import grouped
from laggard.kit.words import counted, ranks_text
from laggard.locate.collectives import Collectives, ProcessGroup
from laggard.locate.job_timings import JobTimings, RankState
from laggard.recording.flight_recorder_dump import Dump, NoDump, parse_dump
from laggard.recording.flight_recorder_queues import Groups, match_groups, miscounted_groups, queues_from_dumps
from laggard.recording.pickles import PickleError, read_plain_pickle
from laggard.recording.recorded_timings import RecordedTimings, read_each
from laggard.recording.records import MAX_RANKS, UNKNOWN


class _Rows(NamedTuple):
    """Records of collectives, sends and receives as columns of equal length, as in Collectives."""

    column: NDArray[np.int32]
    group: NDArray[np.int32]
    op: NDArray[np.int8]
    seq: NDArray[np.int64]
    size: NDArray[np.int64]
    peer: NDArray[np.int32]
    done: NDArray[np.bool_]


_KINDS: tuple[Any, ...] = (np.int32, np.int32, np.int8, np.int64, np.int64, np.int32, np.bool_)


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
        ),
    )


def _collectives(dump: Dump, column: int, matched: Groups, miscounted: frozenset[int]) -> _Rows:
    """One row for each collective of the dump: those that NCCL launched as one have a record each and one number. The
    size is not known where the recorder may have dropped some of them."""
    records = dump.records
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
        return _rows(())
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
    )


def _rows(rows: Sequence[tuple[int, ...]]) -> _Rows:
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * len(_KINDS)
    return _Rows(*(np.array(values, kind) for values, kind in zip(columns, _KINDS, strict=True)))


def _joined(parts: Sequence[_Rows]) -> _Rows:
    columns: list[Any] = [np.concatenate(each) for each in zip(_rows(()), *parts, strict=True)]
    return _Rows(*columns)


MAX_FILE_BYTES = 256 << 20
"""The most bytes of a dump's file. torch's 2,000 records with their stacks are a few megabytes."""

_RANK = re.compile(r"^(.*?)(\d{1,9})((?:\.(?:json|pkl|pickle|bin|dump))*)$", re.DOTALL)


class NotRead(ValueError):
    """A file that is no Flight Recorder dump, or a damaged one; the text says why."""


def read_dumps(paths: Sequence[Path], gaps: list[str]) -> RecordedTimings:
    """The job that dumped the files. Raises UsageError where they are of two jobs, or none of them can be read."""
    dumps = read_each(paths, _read, NotRead, gaps)
    _refuse_two_jobs(dumps)
    dumps.sort(key=lambda dump: dump.rank)
    timings = timings_from_dumps(dumps)
    return RecordedTimings(timings, (*gaps, *_lacking(dumps, timings.world_size)))


def _read(path: Path) -> Dump:
    named = _RANK.match(path.name)
    if named is None:
        raise NotRead("a dump's rank is the number that ends its file's name, and there is none")
    if int(named[2]) >= MAX_RANKS:
        raise NotRead(f"its name ends with {named[2]}, which is no rank's number")
    status = path.stat()
    size = status.st_size
    if size > MAX_FILE_BYTES:
        raise NotRead(f"it has {size:,} bytes, and more than {MAX_FILE_BYTES:,} are not read")
    data = path.read_bytes()
    try:
        value = read_plain_pickle(data) if data[:1] == b"\x80" else msgspec.json.decode(data)
        return parse_dump(value, int(named[2]), str(path), status.st_mtime)
    except (PickleError, NoDump, msgspec.DecodeError, RecursionError) as error:
        raise NotRead("nested too deeply" if isinstance(error, RecursionError) else str(error)) from None


def _refuse_two_jobs(dumps: Sequence[Dump]) -> None:
    """Raises UsageError where one rank has two dumps, or the dumps tell of worlds of different sizes."""
    twice = [rank for rank, own in grouped(dumps, lambda dump: dump.rank).items() if len(own) > 1]
    if twice:
        choices = _choices(grouped(dumps, _prefix))
        raise UsageError(f"{ranks_text(twice)} left more than one dump: name those of one job and moment, {choices}")
    by_world = grouped(dumps, _world)
    by_world.pop("", None)
    if len(by_world) > 1:
        raise UsageError(f"the dumps are of jobs of different sizes: name those of one, {_choices(by_world)}")


def _world(dump: Dump) -> str:
    """Empty where the dump does not tell."""
    worlds = (group.members for group in dump.groups if group.description == "default_pg" and group.members)
    return next((f"{len(members)} ranks" for members in worlds), "")


def _prefix(dump: Dump) -> str:
    path = Path(dump.path)
    named = _RANK.match(path.name)
    return str(path.with_name(f"{named[1]}*{named[3]}")) if named else dump.path


def _choices(sets: Mapping[str, Sequence[Dump]]) -> str:
    texts = [f"{name} ({ranks_text(dump.rank for dump in dumps)})" for name, dumps in sorted(sets.items())[:4]]
    return " or ".join(texts) + (f" and {len(sets) - 4} more" if len(sets) > 4 else "")


def _lacking(dumps: Sequence[Dump], world_size: int) -> list[str]:
    """The facts that the dumps do not tell."""
    found = []
    missing = sorted(set(range(world_size)) - {dump.rank for dump in dumps}) if world_size <= MAX_RANKS else []
    if missing:
        found.append(f"{ranks_text(missing)} left no dump: dead, or hung so that none could be written")
    for dump in dumps:
        if dump.corrupt:
            found.append(f"{counted(dump.corrupt, 'record')} of {dump.path} left out: the first, {dump.reason}")
    empty = [dump.rank for dump in dumps if not len(dump.records.seq)]
    if empty:
        found.append(f"the dumps of {ranks_text(empty)} hold no records: where they stand is known from counts alone")
    undeclared = {
        group.description or group.name
        for dump in dumps
        for group in dump.groups
        if not group.members and group.description != "default_pg"
    }
    if undeclared:
        names = ", ".join(sorted(undeclared)[:4]) + (", ..." if len(undeclared) > 4 else "")
        found.append(f"no dump tells who belongs to {names}: who never came to such a group is not missed there")
    return found
