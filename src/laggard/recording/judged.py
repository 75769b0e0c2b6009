"""Reads a recording, of whatever kind, and judges the job in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import structs

from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Location, Note, Verdict, Window
from laggard.recording.reader import read_recording
from laggard.recording.recorded_timings import RecordedTimings
from laggard.stacks.sampled import Sampled


class JudgedRecording(NamedTuple):
    """`stacks`: those that the ranks' processes left."""

    location: Location
    timings: JobTimings
    stacks: tuple[Sampled, ...] = ()


def judge_recording(paths: Sequence[str]) -> JudgedRecording:
    """The verdict on the recording in files or directories, with what it is based on. Raises UsageError where there is
    none."""
    return judge(read_recording(paths))


def judge(recording: RecordedTimings) -> JudgedRecording:
    """The verdict on a recording that was read."""
    if recording.arrivals is not None:
        from laggard.locate.slow.last_arrivals import locate_arrivals  # NCCL Inspector's logs alone have arrivals

        return JudgedRecording(locate_arrivals(recording.arrivals, recording.gaps), recording.timings)
    unseen = () if recording.unseen is None else (recording.unseen,)
    timings = recording.timings
    if (unseen or recording.stacks) and not len(timings.ranks):
        nothing = Location(Verdict.UNKNOWN, timings.job_id, timings.world_size, 0, Window(), None, (), ())
        location = _with_stacks(lambda _: nothing, recording)
    else:
        location = _with_stacks(locate, recording)
    gaps = tuple(Note("lacks", text) for text in recording.gaps)
    whole = structs.replace(location, notes=location.notes + unseen + gaps, owner=recording.owner)
    return JudgedRecording(whole, timings, recording.stacks)


def _with_stacks(locate: Callable[[JobTimings], Location], recording: RecordedTimings) -> Location:
    if not recording.stacks:
        return locate(recording.timings)
    from laggard.locate.stacked import located, with_stacks  # most recordings have none

    location = located(locate, recording.timings, recording.stacks)
    return with_stacks(location, recording.stacks, recording.timings)
