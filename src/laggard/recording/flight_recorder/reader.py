"""Reads the Flight Recorder dumps of a job: files of a pickle or of JSON, one a rank.

A dump does not say whose it is: its rank is the number that ends the file's name. A record that is damaged costs that
record, and a dump that is, that rank; both are told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from laggard.errors import UsageError
from laggard.recording.flight_recorder.dump import Dump, NoDump, parse_dump
from laggard.recording.flight_recorder.pickles import PickleError, read_plain_pickle
from laggard.recording.flight_recorder.timings import timings_from_dumps
from laggard.recording.recorded_timings import RecordedTimings, read_each
from laggard.recording.records import MAX_RANKS
from laggard.text.words import counted, ranks_text

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
        return parse_dump(_value(data), int(named[2]), str(path), status.st_mtime)
    except (PickleError, NoDump, msgspec.DecodeError, RecursionError) as error:
        raise NotRead("nested too deeply" if isinstance(error, RecursionError) else str(error)) from None


def _value(data: bytes) -> Any:
    return read_plain_pickle(data) if data[:1] == b"\x80" else msgspec.json.decode(data)


def _refuse_two_jobs(dumps: Sequence[Dump]) -> None:
    """Raises UsageError where one rank has two dumps, or the dumps tell of worlds of different sizes."""
    by_prefix: dict[str, list[Dump]] = {}
    for dump in dumps:
        by_prefix.setdefault(_prefix(dump), []).append(dump)
    ranks = [dump.rank for dump in dumps]
    if len(set(ranks)) < len(ranks):
        twice = ranks_text(rank for rank in set(ranks) if ranks.count(rank) > 1)
        raise UsageError(f"{twice} left more than one dump: name those of one job and moment, {_choices(by_prefix)}")
    by_world: dict[str, list[Dump]] = {}
    for dump in dumps:
        members = [group.members for group in dump.groups if group.description == "default_pg" and group.members]
        if members:
            by_world.setdefault(f"{len(members[0])} ranks", []).append(dump)
    if len(by_world) > 1:
        raise UsageError(f"the dumps are of jobs of different sizes: name those of one, {_choices(by_world)}")


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
