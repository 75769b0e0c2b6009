"""The errors that a probe raises where it cannot judge, and what it could not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, ParamSpec, TypeVar


class NotApplicable(Exception):
    """The machine does not have what the probe judges. This needs evidence: a list that was read, and does not hold
    it."""


class Unknown(Exception):
    """The probe cannot judge, for the reason in the message. Its verdict is then `unknown`, never `ok`."""


class NotFound(Unknown):
    """There is no such file. That alone proves nothing: a driver that is not loaded leaves no file either."""


T = TypeVar("T")
P = ParamSpec("P")

_MAX_NAMED = 3


class Unreadable(NamedTuple):
    """The value in the place of one that cannot be read, so that the reader can go on with the rest. A probe yields it:
    it cannot vouch for what it did not read, and is unknown where it finds nothing."""

    reason: str
    """One line, with the path and the kernel's reason."""


def or_none(read: Callable[P, T], *words: P.args, **more: P.kwargs) -> T | None:
    """What `read` returns, and None in the place of Unknown: for what decides nothing, or where no answer is one."""
    try:
        return read(*words, **more)
    except Unknown:
        return None


def if_present(read: Callable[P, T], *words: P.args, **more: P.kwargs) -> T | None:
    """What `read` returns, and None in the place of NotFound: for what not every machine has."""
    try:
        return read(*words, **more)
    except NotFound:
        return None


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


def first_reasons(unreadable: Iterable[Unreadable]) -> str:
    """Empty where there is nothing unreadable."""
    reasons = list(dict.fromkeys(each.reason for each in unreadable))
    more = f" (and {len(reasons) - _MAX_NAMED} more)" if len(reasons) > _MAX_NAMED else ""
    return "; ".join(reasons[:_MAX_NAMED]) + more
