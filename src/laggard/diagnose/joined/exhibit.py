"""What a file says about processes, hosts and times, whatever its format: for the joiner to bring together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from laggard.diagnose.joined.clock import wall_time
from laggard.diagnose.joined.identities import Identity, identities, of_container, ranks_that_write, served
from laggard.diagnose.joined.origin import Origin
from laggard.diagnose.joined.processes import UNANSWERED_HEAD, Process, processes
from laggard.diagnose.joined.sockets import Connection, connections, named_addresses, own_addresses
from laggard.diagnose.joined.stacks import KIND, Stack, stacks

_MAX_NOTE_CHARACTERS: Final = 8192
_SAMPLED_LINES: Final = 200
_LAST_LINES: Final = 5
_CALL_FIRST: Final = "(most recent call first)"
_DONE = re.compile(
    r"\b(?:training|train|run|job|script|program|trainer|main|all (?:epochs|steps|rounds|shards|data))\b"
    r".{0,60}\b(?:finished|done|complete[d]?|ended|over)\b"
    r"|\b(?:finished|done|completed) (?:training|the run|all)\b|\b(?:exiting|exited|exits?)\b.{0,40}\b(?:normally"
    r"|successfully|(?:code|status)[ =:]*0)\b|\b(?:no more|out of) (?:data|batches|shards|samples)\b"
    r"|(?:^|[\]:|] ?)(?:all done|done|finished|bye)[.!]?$",
    re.IGNORECASE,
)
_FAILED = re.compile(r"Traceback \(most|Error\b|[Kk]illed|[Tt]imed out|signal \d")
_NOT_DONE = re.compile(
    r"\b(?:not|never|error|fail\w*|epoch \d+|step \d+|iteration \d+|killed|waiting)\b", re.IGNORECASE
)
_PROMPT = re.compile(r"^\[?[\w.-]{1,40}@([\w.-]{1,64})(?::[^\n$#]{0,120}|[ ][^\n$#\]]{0,120})?\]?[$#] ", re.MULTILINE)


class Exhibit(NamedTuple):
    path: str
    origin: Origin = Origin()
    twins: tuple[Origin, ...] = ()
    """The origins of files with the same content."""
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
    finished: str = ""
    """The last line of the job's output that is in it, where that says that the program had come to its end."""
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
        said, writers = (*of_container(text), *identities(text)), ranks_that_write(text)
        dumped, finished = _dumped(text), _finished(text)
        return Exhibit(
            path, origin, (), True, said, writers, stacks=dumped, finished=finished, last=_last_time(text, year)
        )
    rows = connections(text)
    return Exhibit(
        path,
        origin,
        (),
        False,
        (*served(text), *of_container(text), *_of_unclear(text, kind)),
        frozenset(),
        processes(text),
        stacks(text),
        rows,
        own_addresses(text, rows),
        tuple(named_addresses(text).items()) if not kind else (),
        _finished(text) if not kind else "",
        _last_time(text, year) if kind else None,
        text if not kind and len(text) <= _MAX_NOTE_CHARACTERS and not rows else "",
    )


def _of_unclear(text: str, kind: str) -> tuple[Identity, ...]:
    return _of_unknown(text) if kind in ("", KIND) or UNANSWERED_HEAD.match(text) else ()


def _of_unknown(text: str) -> tuple[Identity, ...]:
    """What a text of no known format says of processes: of stacks, and of a log in which nothing failed, where it tells
    the number of a rank's process, and its host or the number of ranks."""
    said = identities(text)
    whole = any(it.pid is not None and (it.host or it.world) for it in said)
    return said if _CALL_FIRST in text or whole else ()


def _dumped(text: str) -> tuple[Stack, ...]:
    """The stacks that faulthandler wrote into a log, up to the next traceback of an exception."""
    at = text.find(_CALL_FIRST)
    if at < 0:
        return ()
    return stacks(text[text.rfind("\n", 0, at) + 1 :].partition("Traceback (most recent call last)")[0])


def _finished(text: str) -> str:
    """The line near the end that says that the whole program is done; an epoch, a step or a checkpoint that is says
    nothing. What libraries warn of while a process ends may follow it."""
    lines = [line.strip()[:400] for line in text.splitlines()[-_SAMPLED_LINES:] if any(map(str.isalnum, line))]
    for line in reversed(lines[-_LAST_LINES:]):
        if _FAILED.search(line):
            return ""
        if _DONE.search(line) and not _NOT_DONE.search(line):
            return line
    return ""


def _last_time(text: str, year: int | None) -> float | None:
    lines = text.splitlines()[-_SAMPLED_LINES:]
    return next(filter(None, (wall_time(line, year) for line in reversed(lines))), None)


def year_in(texts: Iterable[str]) -> int | None:
    """Returns the latest year that a line of any text tells."""
    years = {int(year) for text in texts for year in re.findall(r"\b(20\d\d)[-/]\d\d[-/]\d\d[T _]\d\d:", text)}
    return max(years, default=None)
