"""Whether a daemon's memory and descriptors are flat. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from soaking.daemons import Sample

MEMORY_SHARE: Final = 0.05
MEMORY_BYTES: Final = 3 << 20
"""What the last third of a life may take more than its middle third: a twentieth and 3 MiB."""
DESCRIPTORS: Final = 8
MIN_SAMPLES: Final = 12
"""A life with fewer is too short to tell."""


def longest_life(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of the life that has the most."""
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        lives.setdefault(sample.life, []).append(sample)
    return max(lives.values(), key=len, default=[])


def leaks(name: str, samples: Sequence[Sample]) -> list[str]:
    """What grew in the longest life, from the median of its middle third to that of its last; its first third is start
    and caches that fill. What cannot be told is said, too."""
    life = longest_life(samples)
    if len(life) < MIN_SAMPLES:
        return [f"{name} has {len(life)} samples in its longest life: too few to tell a leak"]
    third = len(life) // 3
    middle, last = life[third : 2 * third], life[2 * third :]
    grown = []
    before, after = (median(it.memory for it in part) for part in (middle, last))
    if after > before * (1 + MEMORY_SHARE) + MEMORY_BYTES:
        grown.append(f"{name} grew from {before / 1e6:.1f} to {after / 1e6:.1f} MB")
    before, after = (median(it.descriptors for it in part) for part in (middle, last))
    if after > before + DESCRIPTORS:
        grown.append(f"{name} had {before:.0f} open descriptors, then {after:.0f}")
    before, after = (median(it.threads for it in part) for part in (middle, last))
    if after > before + DESCRIPTORS:
        grown.append(f"{name} had {before:.0f} threads, then {after:.0f}")
    return grown
