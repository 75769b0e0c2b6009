"""The processes of a job as programs show them: their states, which rank each is on which host, and TCP connections
that get no answer.

States are those of `ps`, `top` and /proc/PID/status, connections those of `ss` and `netstat`. Programs and launchers
say themselves which rank they are: `rank 3 of 4 is process 17 on n2`, `GLOBAL_RANK: 0, MEMBER: 1/4`, `"rank": 3`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from laggard.diagnose.job.lines import sparse
from laggard.diagnose.rules import patterns, words

_P: Final = patterns("exhibits")

_MAX_ROWS: Final = 8192
_STATES: Final = ("STAT", "S")
_COMMANDS: Final = ("COMMAND", "CMD", "ARGS")

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
    found = _P["local_rank"].search(process.command)
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
    if not values["PID"].isdigit() or not _P["state"].fullmatch(state):
        return None
    cpu = values.get("%CPU", "") if "TIME+" in columns else ""
    return Process(
        int(values["PID"][:10]),
        state,
        line.strip(),
        int(parent[:10]) if parent.isdigit() else None,
        values.get("WCHAN", ""),
        values.get("COMMAND") or values.get("CMD") or values.get("ARGS") or "",
        float(cpu) if _P["percent"].fullmatch(cpu) else None,
    )


def _of_status(text: str) -> Iterator[Process]:
    for state in list(_P["status"].finditer(text))[:64]:
        if pid := _P["status_pid"].search(text, state.end(), state.end() + 400):
            yield Process(int(pid[1]), state[1], state[0].strip())


_MAX_LINES: Final = 4096
_MAX_LINE_CHARACTERS: Final = 400
_SAYS_MORE: Final = words("process")
"""The words of which each line has one that says more of a process than its rank."""


class Identity(NamedTuple):
    """What one line says of a process. None: it does not say."""

    rank: int
    world: int | None = None
    pid: int | None = None
    host: str | None = None


def identities(text: str) -> tuple[Identity, ...]:
    """Returns what the lines of a text say, each once. A line that names a rank alone says nothing."""
    found: dict[Identity, None] = {}
    lines = (text[start:end][:_MAX_LINE_CHARACTERS] for start, end in sparse(text, _SAYS_MORE))
    for line in islice((line for line in lines if "rank" in line.lower()), _MAX_LINES):
        if said := _identity(line):
            found[said] = None
    return tuple(found)


def served(text: str) -> tuple[Identity, ...]:
    """Returns what the heads of torch's debug server say: each rank, and the host of its worker."""
    return tuple({Identity(int(rank), host=host): None for rank, host in _P["served"].findall(text)})[:_MAX_LINES]


def of_container(text: str) -> tuple[Identity, ...]:
    """Returns the rank and the node of the one container that `kubectl describe pod` or `docker inspect` tells of."""
    ranks = {int(one or other) for one, other in _P["environment"].findall(text)} if "RANK" in text else set()
    nodes = {one or other for one, other in _P["node"].findall(text)}
    return (Identity(ranks.pop(), host=nodes.pop()),) if len(ranks) == 1 and len(nodes) == 1 else ()


def ranks_that_write(text: str) -> frozenset[int]:
    """Returns the ranks that stand in front of lines, or as a field of them."""
    return frozenset(int(one or other) for one, other in _P["head"].findall(text))


def _identity(line: str) -> Identity | None:
    if _P["not_said"].search(line):
        return None
    ranks = {int(it[1]) for it in _P["rank"].finditer(line) if not _P["not_global"].search(line[: it.start()])}
    if len(ranks) != 1:
        return None
    world, pid, host = _P["world"].search(line), _P["pid"].search(line), _P["processes_host"].search(line)
    name = host[1] if host and not _P["no_host"].fullmatch(host[1]) and (pid or "host" in host[0].lower()) else None
    size = next((int(size) for size in world.groups() if size), None) if world else None
    if size is None and pid is None and name is None:
        return None
    return Identity(ranks.pop(), size, int(pid[1]) if pid else None, name)


MIN_RETRANSMITS: Final = 3
"""The number of times that the same bytes were sent again, from which on nobody answers: the waits then add up to more
than a second."""
_MIN_PAIRS: Final = 2
_MAX_CONNECTIONS: Final = 16384


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
    return frozenset((*_P["address"].findall(text), *(row.local for row in rows if not row.local.startswith("127."))))


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
            row = row._replace(is_stuck=row.is_stuck or (bool(_P["unacked"].search(line)) and _is_resent(line)))
    if row:
        yield row


def _parsed(line: str) -> Connection | None:
    if found := _P["ss"].match(line):
        state, queued, local, peer, rest = found.groups()
    elif found := _P["netstat"].match(line):
        queued, local, peer, state, rest = found.groups()
    else:
        return None
    waits = int(queued) > 0 or state in ("SYN-SENT", "SYN_SENT")
    return Connection(_plain(local), _plain(peer), waits and _is_resent(rest), line.strip())


def _is_resent(text: str) -> bool:
    counts = (*_P["timer"].findall(text), *_P["retransmits"].findall(text))
    return any(int(one or other) >= MIN_RETRANSMITS for one, other in counts)


def _plain(address: str) -> str:
    return address.strip("[]").removeprefix("::ffff:").partition("%")[0]
