"""Reads a recording, of whatever kind, and judges the job in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from laggard.locate.job_timings import JobTimings
from laggard.locate.stacked import with_stacks
from laggard.locate.verdict import locate
from laggard.model import Location, Note, Verdict, Window
from laggard.recording.reader import read_recording


class JudgedRecording(NamedTuple):
    location: Location
    timings: JobTimings


def judge_recording(paths: Sequence[str]) -> JudgedRecording:
    """The verdict on the recording in files or directories, with what it is based on. Raises UsageError where there is
    none."""
    recording = read_recording(paths)
    if recording.arrivals is not None:
        from laggard.locate.slow.last_arrivals import locate_arrivals  # NCCL Inspector's logs alone have arrivals

        return JudgedRecording(locate_arrivals(recording.arrivals, recording.gaps), recording.timings)
    unseen = () if recording.unseen is None else (recording.unseen,)
    timings = recording.timings
    if unseen and not len(timings.ranks):
        location = Location(Verdict.UNKNOWN, timings.job_id, timings.world_size, 0, Window(), None, (), ())
    else:
        location = with_stacks(locate(timings), recording.stacks)
    gaps = tuple(Note("lacks", text) for text in recording.gaps)
    whole = msgspec.structs.replace(location, notes=location.notes + unseen + gaps, owner=recording.owner)
    return JudgedRecording(whole, recording.timings)
