"""What a file says about processes, hosts and times, whatever its format: for the joiner to bring together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from laggard.diagnose.joined.clock import wall_time
from laggard.diagnose.joined.identities import Identity, identities, ranks_that_write
from laggard.diagnose.joined.origin import Origin
from laggard.diagnose.joined.processes import Process, processes
from laggard.diagnose.joined.sockets import Connection, connections, named_addresses, own_addresses
from laggard.diagnose.joined.stacks import Stack, stacks

_MAX_NOTE_CHARACTERS: Final = 8192
_SAMPLED_LINES: Final = 200
_CALL_FIRST: Final = "(most recent call first)"
_PROMPT = re.compile(r"^\[?[\w.-]{1,40}@([\w.-]{1,64})(?::[^\n$#]{0,120}|[ ][^\n$#\]]{0,120})?\]?[$#] ", re.MULTILINE)


class Exhibit(NamedTuple):
    path: str
    origin: Origin = Origin()
    is_job: bool = False
    """True: of what a job prints."""
    identities: tuple[Identity, ...] = ()
    writers: frozenset[int] = frozenset()
    """The ranks in front of its lines."""
    processes: tuple[Process, ...] = ()
    stacks: tuple[Stack, ...] = ()
    connections: tuple[Connection, ...] = ()
    addresses: frozenset[str] = frozenset()
    named_addresses: tuple[tuple[str, str], ...] = ()
    last: float | None = None
    """The wall clock of its last line that has one, in whatever zone."""
    note: str = ""
    """The text of a note that somebody wrote; empty: it is none."""

    @property
    def ranks(self) -> frozenset[int]:
        return self.writers | {it.rank for it in self.identities}

    @property
    def worlds(self) -> frozenset[int]:
        return frozenset(it.world for it in self.identities if it.world is not None)

    @property
    def host(self) -> str | None:
        """The host that it is of: by its name, by its prompts, by what it says of its processes."""
        said = {it.host for it in self.identities if it.host}
        return self.origin.host or (said.pop() if len(said) == 1 else None)


def read_exhibit(path: str, origin: Origin, text: str, kind: str, is_job: bool, year: int | None) -> Exhibit:
    """`kind`: the name of its format; empty where it is of none. `year`: of the lines that tell none."""
    prompts = set(_PROMPT.findall(text[: 1 << 18]))
    if len(prompts) == 1:
        origin = origin._replace(host=prompts.pop())
    if is_job:
        said, writers = identities(text), ranks_that_write(text)
        return Exhibit(path, origin, True, said, writers, stacks=_dumped(text), last=_last_time(text, year))
    rows = connections(text)
    return Exhibit(
        path,
        origin,
        False,
        identities(text) if not kind and _CALL_FIRST in text else (),
        frozenset(),
        processes(text),
        stacks(text),
        rows,
        own_addresses(text, rows),
        tuple(named_addresses(text).items()) if not kind else (),
        _last_time(text, year) if kind else None,
        text if not kind and len(text) <= _MAX_NOTE_CHARACTERS and not rows else "",
    )


def _dumped(text: str) -> tuple[Stack, ...]:
    """The stacks that faulthandler wrote into a log, up to the next traceback of an exception."""
    at = text.find(_CALL_FIRST)
    if at < 0:
        return ()
    return stacks(text[text.rfind("\n", 0, at) + 1 :].partition("Traceback (most recent call last)")[0])


def _last_time(text: str, year: int | None) -> float | None:
    lines = text.splitlines()[-_SAMPLED_LINES:]
    return next(filter(None, (wall_time(line, year) for line in reversed(lines))), None)


def year_in(texts: Iterable[str]) -> int | None:
    """Returns the latest year that a line of any text tells."""
    years = {int(year) for text in texts for year in re.findall(r"\b(20\d\d)[-/]\d\d[-/]\d\d[T _]\d\d:", text)}
    return max(years, default=None)
