"""The files of stacks in the folder of a recording: what faulthandler wrote for ranks that could not write themselves
any more, and where processes stood that came to no step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from laggard.locate.job_timings import live_timings
from laggard.recording.recorded_timings import RecordedTimings
from laggard.stacks.fault_text import read_faults
from laggard.stacks.sampled import Sampled, SampledError, read

MAX_FILES = 100_000


def read_stacks(faults: Iterable[Path], stacks: Iterable[Path], gaps: list[str]) -> list[Sampled]:
    """What these files say. One that cannot be read is told in `gaps`."""
    found: list[Sampled] = []
    kinds: tuple[tuple[Iterable[Path], Callable[[str], Sampled | None]], ...] = ((faults, read_faults), (stacks, read))
    for files, read_one in kinds:
        for file in itertools.islice(files, MAX_FILES):
            try:
                sampled = read_one(str(file))
            except SampledError as error:
                gaps.append(f"{file} is left out: {error}")
            else:
                found += [sampled] if sampled is not None else []
    return found


def stacks_alone(stacks: Sequence[Sampled]) -> RecordedTimings:
    """The timings where no rank was recorded: those of the job whose stacks are the newest."""
    newest = max(stacks, key=lambda each: each.at)
    own = tuple(each for each in stacks if each.job_id == newest.job_id)
    size = max(each.rank for each in own) + 1
    return RecordedTimings(live_timings(newest.job_id, size, {}, {}, {}, {}), (), stacks=own)
