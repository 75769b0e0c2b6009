"""The collectives and sizes that a job spends its time in: only those are measured. Pure but for `of_recording`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from laggard.constants import OPS
from laggard.errors import UsageError
from laggard.recording.reader import read_recording
from laggard.rings.bandwidth import parse_size

if TYPE_CHECKING:
    from laggard.locate.collectives import Collectives

MEASURED: Final = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all")
"""Operations that nccl-tests has a program for."""
_TIME_SHARE: Final = 0.95
"""The share of the time in collectives beyond which messages are left out."""
MAX_MESSAGES: Final = 6
_MIN_MESSAGE_BYTES: Final = 1024


class Message(NamedTuple):
    op: str
    size_bytes: int
    """The bytes as nccl-tests counts."""
    times: float = 1.0
    """The weight with which it counts: in a recording, so many a step and rank."""

    @property
    def label(self) -> str:
        return f"{self.op} {self.size_bytes}"


class Profile(NamedTuple):
    messages: tuple[Message, ...]
    share: float
    """The share of the time in collectives that the messages stand for."""
    source: str


def parse_messages(text: str) -> Profile:
    """Reads `all_reduce:64M,all_gather:1G`. Raises UsageError."""
    found = []
    for word in text.split(","):
        op, _, size = word.partition(":")
        if op not in MEASURED:
            raise UsageError(f"--messages {word!r}: give OPERATION:SIZE, with one of {', '.join(MEASURED)}")
        try:
            found.append(Message(op, parse_size(size)))
        except ValueError as error:
            raise UsageError(f"--messages {word!r}: {error}") from None
    return Profile(tuple(dict.fromkeys(found)), 1.0, "as given")


def of_recording(paths: Sequence[str]) -> Profile:
    """Raises UsageError for a recording without collectives."""
    timings = read_recording(paths).timings
    if timings.collectives is None or not len(timings.collectives.op):
        raise UsageError(f"{paths[0]} has no collectives: record with `laggard run --record DIR`, or give --messages")
    steps = max(1, int(np.isfinite(timings.step_seconds).sum()))
    return profile_of(timings.collectives, steps, paths[0])


def profile_of(collectives: Collectives, rank_steps: int, source: str) -> Profile:
    """Returns the messages with the most time, sizes rounded to powers of two. A collective's time is that of the rank
    that came last, which alone waited for nobody: the shortest of its group's. `rank_steps`: steps times ranks."""
    known = (collectives.size >= _MIN_MESSAGE_BYTES) & (collectives.end > collectives.start) & (collectives.op >= 0)
    seconds = np.where(known, collectives.end - collectives.start, 0.0)
    rounded = np.exp2(np.round(np.log2(np.maximum(collectives.size, 1)))).astype(np.int64)
    rows = []
    for op in np.unique(collectives.op[known]):
        if OPS[op] in MEASURED:
            for size in np.unique(rounded[known & (collectives.op == op)]):
                own = known & (collectives.op == op) & (rounded == size)
                rows.append((float(np.median(seconds[own]) * own.sum()), OPS[op], int(size), int(own.sum())))
    rows.sort(reverse=True)
    whole = sum(row[0] for row in rows)
    if not whole:
        raise UsageError(f"{source} has no collective of {_MIN_MESSAGE_BYTES} B or more that ended: give --messages")
    kept, share = [], 0.0
    for time, name, size, count in rows[:MAX_MESSAGES]:
        if share >= _TIME_SHARE:
            break
        kept.append(Message(name, size, count / rank_steps))
        share += time / whole
    return Profile(tuple(kept), min(share, 1.0), source)
