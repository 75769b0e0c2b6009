"""The channels that transfers go through, and the facts that are known of each, as values. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.collectives import Collectives, Numbers, Times


class Channel(NamedTuple):
    """A process group, a rank that sends and one that receives, or two ranks that do both: what transfers go through.
    `columns` are its ranks' columns."""

    group: str
    role: str
    columns: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Transfers:
    """T transfers: through which channel, in which step, of which operation and size, and how long each took, at most
    (`most`) and at least (`least`). `messages`: of so many, of that size each, these are the times."""

    channel: Numbers
    step: Numbers
    op: Numbers
    size: Numbers
    most: Times
    least: Times
    messages: Numbers


def no_transfers() -> Transfers:
    empty = np.zeros(0, np.int64)
    return Transfers(empty, empty, empty, empty, np.zeros(0), np.zeros(0), empty)


def add_channels(channels: list[Channel], found: dict[int, Channel]) -> dict[int, int]:
    """Adds the channels that were `found`, and returns the place of each by its number."""
    places = {number: len(channels) + place for place, number in enumerate(found)}
    channels += found.values()
    return places


def blocked_seconds(collectives: Collectives) -> Times:
    """[C]: how long each rank was blocked in its collective. Without a record of it, in all of it."""
    seconds = collectives.end - collectives.start
    return np.where(np.isnan(collectives.waited), seconds, np.clip(collectives.waited, 0.0, np.fmax(seconds, 0.0)))


def grouped(key: Sequence[NDArray[np.integer]]) -> tuple[Numbers, Numbers]:
    """The order in which rows with equal keys stand together, and where each of them begins."""
    order = np.lexsort(tuple(key))
    if not len(order):
        return order, order
    changes = np.zeros(len(order), np.bool_)
    changes[0] = True
    for column in key:
        changes[1:] |= column[order[1:]] != column[order[:-1]]
    return order, np.flatnonzero(changes)
