"""TCP connections whose bytes get no answer, as `ss` and `netstat` show them, and the hosts of addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

MIN_RETRANSMITS: Final = 3
"""The number of times that the same bytes were sent again, from which on nobody answers: the waits then add up to more
than a second."""
_MIN_PAIRS: Final = 2
_MAX_ROWS: Final = 16384
_SS = re.compile(
    r"^(?:tcp +)?(ESTAB|SYN-SENT|FIN-WAIT-1|CLOSE-WAIT|LAST-ACK) +\d+ +(\d{1,12}) +(\S+):\d+ +(\S+):\d+(.*)$"
)
_NETSTAT = re.compile(r"^tcp6? +\d+ +(\d{1,12}) +(\S+):\d+ +(\S+):\d+ +(ESTABLISHED|SYN_SENT|FIN_WAIT1|LAST_ACK)(.*)$")
_TIMER = re.compile(r"timer:\(on,[^,]*,(\d{1,4})\)|\bon \([\d.]+/(\d{1,4})/\d+\)")
_RETRANSMITS = re.compile(r"\bbackoff:(\d{1,4})|\bretrans:(\d{1,4})/\d+")
_UNACKED = re.compile(r"\bunacked:[1-9]")
_ADDRESS = re.compile(r"\binet6? (?!127\.|::1|fe80)([0-9a-f.:]{3,45})/\d{1,3}\b")
_NAMED = re.compile(r"^(\d{1,3}(?:\.\d{1,3}){3})[ \t]+([A-Za-z][\w.-]{0,62})", re.MULTILINE)


class Connection(NamedTuple):
    local: str
    peer: str
    is_stuck: bool
    """Bytes were sent again and again, and not answered."""
    line: str


def connections(text: str) -> tuple[Connection, ...]:
    return tuple(_connections(text.splitlines()[:_MAX_ROWS]))


def own_addresses(text: str, rows: Iterable[Connection]) -> frozenset[str]:
    """Returns the addresses of the host that a text comes from: `ip addr` and the local ends of connections."""
    return frozenset((*_ADDRESS.findall(text), *(row.local for row in rows if not row.local.startswith("127."))))


def named_addresses(text: str) -> dict[str, str]:
    """Returns the hosts by address of a text like /etc/hosts."""
    return {address: name for address, name in _NAMED.findall(text) if not address.startswith("127.")}


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
