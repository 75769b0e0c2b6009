"""The stacks that are held of a job's ranks, the newest of each, and about how many bytes they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, NamedTuple

from laggard.stacks.frames import Frame
from laggard.stacks.sampled import Counted, Sampled, Thread
from laggard.wire.stacks import MissingStacks

MAX_BYTES: Final = 64 << 20
"""The most bytes of the stacks of all jobs together."""

_FRAME_BYTES: Final = 250  # a tuple of four, two texts and their heads; measured with sys.getsizeof
_COUNTED_BYTES: Final = 200
_REFERENCE_BYTES: Final = 8
_MAX_FRAMES: Final = 1 << 16


class JobStacks(NamedTuple):
    """The stacks of one job, for those who read them. `missing`: why a rank has none; `ranks`: all of the job."""

    by_rank: Mapping[int, Sampled]
    missing: Mapping[int, MissingStacks]
    ranks: tuple[int, ...]


@dataclasses.dataclass
class HeldStacks:
    """`missing`: why a rank had none when it was last asked. `updated_at`: when the last ones came, in monotonic
    seconds. Equal frames of different ranks are held once: the ranks of a job run one script."""

    by_rank: Mapping[int, Sampled] = dataclasses.field(default_factory=dict)
    missing: Mapping[int, MissingStacks] = dataclasses.field(default_factory=dict)
    updated_at: float = 0.0
    bytes: int = 0
    _frames: dict[Frame, Frame] = dataclasses.field(default_factory=dict)

    def add(self, found: Mapping[int, Sampled], missing: Mapping[int, MissingStacks], now: float) -> None:
        """Takes them over where they are newer. Readers may read meanwhile: the mapping is replaced as a whole."""
        newer = {
            rank: self._shared(each)
            for rank, each in found.items()
            if rank not in self.by_rank or each.at >= self.by_rank[rank].at
        }
        self.by_rank = {**self.by_rank, **newer}
        kept = {rank: each for rank, each in self.missing.items() if rank not in found}
        self.missing = {**kept, **missing}
        self.updated_at = now
        used = {frame for each in self.by_rank.values() for frame in _frames_of(each)}
        self._frames = {frame: frame for frame in used}
        self.bytes = sum(_FRAME_BYTES + len(frame.file) + len(frame.function) for frame in used) + sum(
            map(_own_bytes, self.by_rank.values())
        )

    def kernel(self) -> dict[int, str]:
        """The places in the kernel of ranks without stacks, in words, where they are known."""
        return {rank: each.kernel for rank, each in self.missing.items() if each.kernel}

    def clear(self) -> None:
        self.by_rank, self.missing, self._frames, self.bytes = {}, {}, {}, 0

    def _shared(self, sampled: Sampled) -> Sampled:
        threads = (
            Thread(thread.name, tuple(self._shared_stack(each) for each in thread.stacks), thread.pid)
            for thread in sampled.threads
        )
        return sampled._replace(threads=tuple(threads))

    def _shared_stack(self, each: Counted) -> Counted:
        if len(self._frames) > _MAX_FRAMES:
            return each
        return each._replace(frames=tuple(self._frames.setdefault(frame, frame) for frame in each.frames))


def _frames_of(sampled: Sampled) -> set[Frame]:
    return {frame for thread in sampled.threads for each in thread.stacks for frame in each.frames}


def _own_bytes(sampled: Sampled) -> int:
    stacks = [each for thread in sampled.threads for each in thread.stacks]
    frames = sum(len(each.frames) for each in stacks)
    return _COUNTED_BYTES * (len(stacks) + len(sampled.threads) + 2) + _REFERENCE_BYTES * frames
