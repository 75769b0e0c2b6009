"""Reads NCCL Inspector's logs: who came last to collectives. They hold no steps, so that there are no timings."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

from laggard.locate.job_timings import build_timings
from laggard.nccl.inspector import NO_NUMBERS, InspectorLog, gaps_of, last_arrivals
from laggard.recording.recorded_timings import RecordedTimings

MAX_BYTES = 4 << 30
"""The most bytes of all files together, unpacked: some ten million collectives."""

_PIECE = 1 << 20


def read_inspector(paths: Sequence[Path], gaps: list[str]) -> RecordedTimings:
    """The timings by the logs of a job's processes. Without any, only metrics were given. Raises OSError."""
    log = InspectorLog()
    left = MAX_BYTES
    for path in paths:
        for piece in _pieces(path, gaps):
            left -= len(piece)
            if left < 0:
                break
            log.feed(piece)
        log.end()
    arrivals = last_arrivals(log)
    found = list(gaps_of(log, arrivals)) if paths else [NO_NUMBERS]
    if left < 0:
        found.append(f"only the first {MAX_BYTES >> 30} GiB were read")
    return RecordedTimings(build_timings(None, 0, {}, {}, {}), (*gaps, *found), arrivals=arrivals)


def _pieces(path: Path, gaps: list[str]) -> Iterator[str]:
    with open(path, "rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece.decode(errors="replace")
    except (EOFError, gzip.BadGzipFile) as error:
        gaps.append(f"{path}: cut off or damaged ({error})")
