"""The errors that a probe raises where it cannot judge, and what it could not read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar


class NotApplicable(Exception):
    """The machine does not have what the probe judges. This needs evidence: a list that was read, and does not hold
    it."""


class Unknown(Exception):
    """The probe cannot judge, for the reason in the message. Its verdict is then `unknown`, never `ok`."""


class NotFound(Unknown):
    """There is no such file. That alone proves nothing: a driver that is not loaded leaves no file either."""


# The value that a reader returns in the place of one that cannot be read, so that it can go on with the rest.

T = TypeVar("T")

_MAX_NAMED = 3


class Unreadable(NamedTuple):
    reason: str
    """One line, with the path and the kernel's reason."""


def split_unreadable(readings: Iterable[T | Unreadable]) -> tuple[tuple[T, ...], tuple[Unreadable, ...]]:
    """Returns the values apart from what could not be read."""
    values: list[T] = []
    unreadable: list[Unreadable] = []
    for reading in readings:
        if isinstance(reading, Unreadable):
            unreadable.append(reading)
        else:
            values.append(reading)
    return tuple(values), tuple(unreadable)


def raise_if_unreadable(unreadable: Iterable[Unreadable]) -> None:
    """Raises Unknown with the first reasons. A probe calls it last: it cannot vouch for what it did not read."""
    reasons = list(dict.fromkeys(each.reason for each in unreadable))
    if reasons:
        more = f" (and {len(reasons) - _MAX_NAMED} more)" if len(reasons) > _MAX_NAMED else ""
        raise Unknown("; ".join(reasons[:_MAX_NAMED]) + more)
