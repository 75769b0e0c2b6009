"""A tuner table from measurements: for each size the fastest setting with right results, and a row for every other
message, so that none falls to one channel by accident. Pure, standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from laggard.nccl.tuner.plugin import NCCLS_OWN
from laggard.nccl.tuner.table import COLLECTIVES, MAX_BYTES, TunerRow

TIE: Final = 0.02
"""The share within which nccl-tests' times repeat: a setting must win by more to be changed to."""
SMALL_BYTES: Final = 64 << 10
"""The message size up to which NCCL's own model prefers ll on nearly all machines; what was not measured follows it."""


class Measurement(NamedTuple):
    """One setting at one size. `size_bytes` as nccl-tests counts."""

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int
    seconds: float
    wrong: int = 0
    """Wrong elements: such a setting is never chosen, however fast."""


class Band(NamedTuple):
    """A setting, for all sizes up to `max_bytes`."""

    min_bytes: int
    max_bytes: int
    best: Measurement


def choose_bands(measurements: Iterable[Measurement], tie: float = TIE) -> dict[str, tuple[Band, ...]]:
    """Returns the bands of each collective that was measured. Bounds lie between sizes in the geometric middle; the
    first band begins at 0, and the last has no end. A setting is kept from one size to the next where it is as fast."""
    found: dict[str, tuple[Band, ...]] = {}
    right = [each for each in measurements if not each.wrong and each.seconds > 0]
    for collective in COLLECTIVES:
        sizes: dict[int, dict[tuple[str, str, int], Measurement]] = {}
        for each in right:
            if each.collective == collective:
                own = sizes.setdefault(each.size_bytes, {})
                setting = (each.algorithm, each.protocol, each.channels)
                if setting not in own or each.seconds < own[setting].seconds:
                    own[setting] = each
        if sizes:
            found[collective] = tuple(_bands(sizes, tie))
    return found


def _bands(sizes: dict[int, dict[tuple[str, str, int], Measurement]], tie: float) -> list[Band]:
    bands: list[Band] = []
    ordered = sorted(sizes)
    for place, size in enumerate(ordered):
        end = math.isqrt(max(size, 1) * ordered[place + 1]) if place + 1 < len(ordered) else MAX_BYTES
        best = _best(sizes[size], bands[-1].best if bands else None, tie)
        if bands and _setting(bands[-1].best) == _setting(best):
            bands[-1] = bands[-1]._replace(max_bytes=end)
        else:
            bands.append(Band(bands[-1].max_bytes + 1 if bands else 0, end, best))
    return bands


def _best(own: dict[tuple[str, str, int], Measurement], before: Measurement | None, tie: float) -> Measurement:
    best = min(own.values(), key=lambda each: (each.seconds, each.channels))
    kept = own.get(_setting(before)) if before else None
    return kept if kept and kept.seconds <= best.seconds * (1 + tie) else best


def _setting(each: Measurement) -> tuple[str, str, int]:
    return each.algorithm, each.protocol, each.channels


def build_rows(bands: dict[str, Sequence[Band]], nodes: int, ranks: int) -> tuple[TunerRow, ...]:
    """Returns the rows of a table for communicators of so many nodes and ranks. Each band is followed by rows for
    NCCL's own number of channels, which apply where NCCL does not offer the band's algorithm or protocol, and to all
    other communicators and collectives."""
    rows = [
        TunerRow(0, collective, band.min_bytes, band.max_bytes, *_setting(band.best), nodes, ranks)
        for collective, own in bands.items()
        for band in own
    ]
    for collective in COLLECTIVES:
        rows.append(TunerRow(0, collective, 0, SMALL_BYTES, "ring", "ll", NCCLS_OWN))
        rows.append(TunerRow(0, collective, 0, MAX_BYTES, "ring", "simple", NCCLS_OWN))
        rows.append(TunerRow(0, collective, 0, MAX_BYTES, "ring", "ll", NCCLS_OWN))
    return tuple(row._replace(line=place) for place, row in enumerate(rows, 1))
