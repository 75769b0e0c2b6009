"""The processes of a job as programs show them: their states, which rank each is on which host, and TCP connections
that get no answer.

States are those of `ps`, `top` and /proc/PID/status, connections those of `ss` and `netstat`. Programs and launchers
say themselves which rank they are: `rank 3 of 4 is process 17 on n2`, `GLOBAL_RANK: 0, MEMBER: 1/4`, `"rank": 3`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

_MAX_ROWS: Final = 8192
_STATES: Final = ("STAT", "S")
_COMMANDS: Final = ("COMMAND", "CMD", "ARGS")
_PERCENT = re.compile(r"\d{1,5}(?:\.\d{1,3})?")
_STATE = re.compile(r"[A-Z][A-Za-z<+]{0,5}")
_STATUS = re.compile(r"^State:[ \t]+([A-Za-z])\b[^\n]{0,40}$", re.MULTILINE)
_STATUS_PID = re.compile(r"^Pid:[ \t]+(\d{1,10})$", re.MULTILINE)
_LOCAL_RANK = re.compile(r"--local[-_]rank[= ](\d{1,5})\b")

UNANSWERED_HEAD: Final = re.compile(r"rank \d{1,10} runs as pid \d{1,10} on host \S{0,260}, and wrote no stacks\n")
"""The first line about a rank that another one saw, as diagnose/parts.py writes it."""


class Process(NamedTuple):
    """`state`: its letters, as `Ssl` or `T`. `waits`: the kernel's function that it sleeps in."""

    pid: int
    state: str
    line: str
    parent: int | None = None
    waits: str = ""
    command: str = ""
    cpu: float | None = None
    """The percent of a core that it uses now, as `top` tells it; what `ps` tells is the mean of its life."""


def processes(text: str) -> tuple[Process, ...]:
    return (*_rows(text.splitlines()), *_of_status(text))


def local_rank(process: Process) -> int | None:
    found = _LOCAL_RANK.search(process.command)
    return int(found[1]) if found else None


def _rows(lines: Iterable[str]) -> Iterator[Process]:
    columns: list[str] = []
    for number, line in enumerate(lines):
        words = line.split()
        if number >= _MAX_ROWS:
            return
        if "PID" in words and any(name in words for name in _STATES):
            columns = words if words[-1] in _COMMANDS else [*words, "COMMAND"]
        elif columns and len(words) >= len(columns) - 1 and (row := _row(line, columns)):
            yield row


def _row(line: str, columns: Sequence[str]) -> Process | None:
    values = dict(zip(columns, line.split(None, len(columns) - 1), strict=False))
    state = values.get("STAT") or values.get("S") or ""
    parent = values.get("PPID", "")
    if not values["PID"].isdigit() or not _STATE.fullmatch(state):
        return None
    cpu = values.get("%CPU", "") if "TIME+" in columns else ""
    return Process(
        int(values["PID"][:10]),
        state,
        line.strip(),
        int(parent[:10]) if parent.isdigit() else None,
        values.get("WCHAN", ""),
        values.get("COMMAND") or values.get("CMD") or values.get("ARGS") or "",
        float(cpu) if _PERCENT.fullmatch(cpu) else None,
    )


def _of_status(text: str) -> Iterator[Process]:
    for state in list(_STATUS.finditer(text))[:64]:
        if pid := _STATUS_PID.search(text, state.end(), state.end() + 400):
            yield Process(int(pid[1]), state[1], state[0].strip())


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


MIN_RETRANSMITS: Final = 3
"""The number of times that the same bytes were sent again, from which on nobody answers: the waits then add up to more
than a second."""
_MIN_PAIRS: Final = 2
_MAX_CONNECTIONS: Final = 16384
_SS = re.compile(
    r"^(?:tcp +)?(ESTAB|SYN-SENT|FIN-WAIT-1|CLOSE-WAIT|LAST-ACK) +\d+ +(\d{1,12}) +(\S+):\d+ +(\S+):\d+(.*)$"
)
_NETSTAT = re.compile(r"^tcp6? +\d+ +(\d{1,12}) +(\S+):\d+ +(\S+):\d+ +(ESTABLISHED|SYN_SENT|FIN_WAIT1|LAST_ACK)(.*)$")
_TIMER = re.compile(r"timer:\(on,[^,]*,(\d{1,4})\)|\bon \([\d.]+/(\d{1,4})/\d+\)")
_RETRANSMITS = re.compile(r"\bbackoff:(\d{1,4})|\bretrans:(\d{1,4})/\d+")
_UNACKED = re.compile(r"\bunacked:[1-9]")
_ADDRESS = re.compile(r"\binet6? (?!127\.|::1|fe80)([0-9a-f.:]{3,45})/\d{1,3}\b")


class Connection(NamedTuple):
    local: str
    peer: str
    is_stuck: bool
    """Bytes were sent again and again, and not answered."""
    line: str


def connections(text: str) -> tuple[Connection, ...]:
    return tuple(_connections(text.splitlines()[:_MAX_CONNECTIONS]))


def own_addresses(text: str, rows: Iterable[Connection]) -> frozenset[str]:
    """Returns the addresses of the host that a text comes from: `ip addr` and the local ends of connections."""
    return frozenset((*_ADDRESS.findall(text), *(row.local for row in rows if not row.local.startswith("127."))))


def common_end(rows: Iterable[Connection]) -> str:
    """Returns the address that all stuck connections have in common; empty: there is none, or they are of one pair, in
    which either end can be at fault."""
    pairs = {frozenset((row.local, row.peer)) for row in rows if row.is_stuck}
    if len(pairs) < _MIN_PAIRS:
        return ""
    counts = Counter(address for pair in pairs for address in pair)
    in_all = [address for address, count in counts.items() if count == len(pairs)]
    return in_all[0] if len(in_all) == 1 else ""


def _connections(lines: Iterable[str]) -> Iterator[Connection]:
    """`ss -i` writes what it knows more of a connection into the line after it."""
    row: Connection | None = None
    for line in lines:
        if found := _parsed(line):
            if row:
                yield row
            row = found
        elif row and line[:1] in " \t":
            row = row._replace(is_stuck=row.is_stuck or (bool(_UNACKED.search(line)) and _is_resent(line)))
    if row:
        yield row


def _parsed(line: str) -> Connection | None:
    if found := _SS.match(line):
        state, queued, local, peer, rest = found.groups()
    elif found := _NETSTAT.match(line):
        queued, local, peer, state, rest = found.groups()
    else:
        return None
    waits = int(queued) > 0 or state in ("SYN-SENT", "SYN_SENT")
    return Connection(_plain(local), _plain(peer), waits and _is_resent(rest), line.strip())


def _is_resent(text: str) -> bool:
    counts = (*_TIMER.findall(text), *_RETRANSMITS.findall(text))
    return any(int(one or other) >= MIN_RETRANSMITS for one, other in counts)


def _plain(address: str) -> str:
    return address.strip("[]").removeprefix("::ffff:").partition("%")[0]
