"""The messages of amdgpu in the kernel's log, as events of a GPU, and what closed them since: a reset, or the driver
loaded anew. A message is the driver's where its record begins so: see host/user_text.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from laggard.probes.gpu.model.amdgpu_messages import AMDGPU_MESSAGES, BEGINNINGS, DRIVER_LOADED, OTHER_MESSAGES, Kind
from laggard.probes.host.kernel_log import KernelMessage, parse_messages
from laggard.probes.host.user_text import begins_with_users_text

MAX_EVENTS: Final = 4096
"""The most events that are kept of one log, the newest ones."""

_SAME_RESET_SECONDS: Final = 600.0
"""The time in which a reset that was begun should have ended: the driver waits for seconds to a minute."""
_UNTOUCHED_BY_A_RESET: Final = frozenset({Kind.THRESHOLD, Kind.NEAR_THRESHOLD, Kind.LOST, Kind.RESET_DONE})


class AmdgpuEvent(NamedTuple):
    """`seconds`: after boot; None where the log has no times. `address`: empty where the message names no GPU."""

    seconds: float | None
    address: str
    kind: Kind
    text: str
    closed_by: str = ""


def find_amdgpu_events(log: str) -> list[AmdgpuEvent]:
    """Finds the events in a kernel log of any form that host/kernel_log.py reads, oldest first."""
    events: list[AmdgpuEvent] = []
    for event in _events(parse_messages(log)):
        if event is None:
            events = [_closed(each, "the driver was loaded anew") for each in events]
        elif event.kind is Kind.RESET_DONE:
            events = [_after_reset(each, event.address) for each in events]
            events.append(event)
        else:
            events.append(event)
        events = events[-MAX_EVENTS:]
    return events


def open_kinds(events: Iterable[AmdgpuEvent], address: str) -> frozenset[Kind]:
    """Returns the kinds of a GPU's events that nothing has closed."""
    return frozenset(event.kind for event in events if event.address == address and not event.closed_by)


def _after_reset(event: AmdgpuEvent, address: str) -> AmdgpuEvent:
    is_its = event.address in ("", address) and event.kind not in _UNTOUCHED_BY_A_RESET
    return _closed(event, "the GPU was reset") if is_its else event


def _closed(event: AmdgpuEvent, how: str) -> AmdgpuEvent:
    is_kept = event.closed_by or event.kind in (Kind.THRESHOLD, Kind.NEAR_THRESHOLD)
    return event if is_kept else event._replace(closed_by=how)


def _events(messages: Iterable[KernelMessage]) -> Iterator[AmdgpuEvent | None]:
    """Yields the events; None where the driver was loaded."""
    for message in messages:
        text = message.text
        if not text.startswith(BEGINNINGS) or begins_with_users_text(text):
            continue
        if text.startswith(DRIVER_LOADED):
            yield None
            continue
        for word, kind, pattern in _patterns():
            if word in text and (found := pattern.search(text)):
                address = (found.groupdict().get("device") or "").lower()
                yield AmdgpuEvent(message.seconds, address, kind, text[:200])
                break


@cache
def _patterns() -> tuple[tuple[str, Kind, re.Pattern[str]], ...]:
    return tuple((each.word, each.kind, re.compile(each.pattern)) for each in (*AMDGPU_MESSAGES, *OTHER_MESSAGES))
