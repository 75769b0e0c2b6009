"""Which rank is which process on which host, as programs and launchers say it themselves: `rank 3 of 4 is process 17 on
n2`, `GLOBAL_RANK: 0, MEMBER: 1/4`, `"rank": 3`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_MAX_LINES: Final = 4096
_MAX_LINE_CHARACTERS: Final = 400
_RANK = re.compile(
    r"(?<![A-Za-z])(?:(?:global|process|my)[_ -]?)?rank['\"]?\s{0,2}[:=#]?\s{0,2}(\d{1,7})(?![\d.])", re.IGNORECASE
)
_NOT_GLOBAL = re.compile(r"(?:local|node|group)[_ -]$", re.IGNORECASE)
_WORLD = re.compile(
    r"rank['\"]?\s{0,2}[:=#]?\s{0,2}\d{1,7}\s{0,2}(?:/|of|out of)\s{0,2}(\d{1,7})\b"
    r"|world[_ -]?size['\"]?\s{0,2}[:=]?\s{0,2}(\d{1,7})\b|MEMBER: \d{1,7}/(\d{1,7})\b",
    re.IGNORECASE,
)
_PID = re.compile(r"(?<![A-Za-z])(?:pid|process(?:[ _]id)?)['\"]?\s{0,2}[:=#]?\s{0,2}(\d{1,10})\b", re.IGNORECASE)
_HOST = re.compile(
    r"(?:(?<![A-Za-z])host(?:name)?['\"]?\s{0,2}[:=]\s{0,2}['\"]?|\bon (?:host |node )?)([A-Za-z][\w.-]{0,62}\w)",
    re.IGNORECASE,
)
_NO_HOST = re.compile(r"(?:the|all|each|any|device|cuda|cpu|gpu|rank|this|that|port|node|host|every)\d*", re.IGNORECASE)
_NOT_SAID = re.compile(r"Error|Traceback|File \"|[Ww]atchdog|failed|imeout|exitcode")
_SERVED = re.compile(r"(?:<h[23]>|=== )Rank (\d{1,7}): https?://([\w.-]{1,253})(?::\d{1,5})?/handler/")
_HEAD = re.compile(r"\[[Rr]ank ?(\d{1,7})\]|\"rank\" ?: ?\"?(\d{1,7})\b")


_ENVIRONMENT = re.compile(r"^\s{2,40}RANK:\s{1,40}(\d{1,7})\s*$|\"RANK=(\d{1,7})\"", re.MULTILINE)
_NODE = re.compile(r"^Node:\s{1,40}([\w.-]{1,253})(?:/\S*)?\s*$|\"Hostname\": \"([\w.-]{1,253})\"", re.MULTILINE)


class Identity(NamedTuple):
    """What one line says of a process. None: it does not say."""

    rank: int
    world: int | None = None
    pid: int | None = None
    host: str | None = None


def identities(text: str) -> tuple[Identity, ...]:
    """Returns what the lines of a text say, each once. A line that names a rank alone says nothing."""
    found: dict[Identity, None] = {}
    for number, line in enumerate(_lines_with_rank(text)):
        if number >= _MAX_LINES:
            break
        if said := _identity(line):
            found[said] = None
    return tuple(found)


def served(text: str) -> tuple[Identity, ...]:
    """Returns what the heads of torch's debug server say: each rank, and the host of its worker."""
    return tuple({Identity(int(rank), host=host): None for rank, host in _SERVED.findall(text)})[:_MAX_LINES]


def of_container(text: str) -> tuple[Identity, ...]:
    """Returns the rank and the node of the one container that `kubectl describe pod` or `docker inspect` tells of."""
    ranks = {int(one or other) for one, other in _ENVIRONMENT.findall(text)}
    nodes = {one or other for one, other in _NODE.findall(text)}
    return (Identity(ranks.pop(), host=nodes.pop()),) if len(ranks) == 1 and len(nodes) == 1 else ()


def ranks_that_write(text: str) -> frozenset[int]:
    """Returns the ranks that stand in front of lines, or as a field of them."""
    return frozenset(int(one or other) for one, other in _HEAD.findall(text))


def _lines_with_rank(text: str) -> list[str]:
    lines = text.splitlines()
    return [line[:_MAX_LINE_CHARACTERS] for line in lines if "rank" in line or "RANK" in line or "Rank" in line]


def _identity(line: str) -> Identity | None:
    if _NOT_SAID.search(line):
        return None
    ranks = {int(it[1]) for it in _RANK.finditer(line) if not _NOT_GLOBAL.search(line[: it.start()])}
    if len(ranks) != 1:
        return None
    world, pid, host = _WORLD.search(line), _PID.search(line), _HOST.search(line)
    name = host[1] if host and not _NO_HOST.fullmatch(host[1]) and (pid or "host" in host[0].lower()) else None
    size = next((int(size) for size in world.groups() if size), None) if world else None
    if size is None and pid is None and name is None:
        return None
    return Identity(ranks.pop(), size, int(pid[1]) if pid else None, name)
