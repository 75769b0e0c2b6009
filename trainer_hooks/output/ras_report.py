"""Asks the NCCL RAS of this job, in whose processes NCCL has a thread that answers whatever the training does, what it
knows of a standstill.

It runs on a thread of its own, since an answer may take NCCL ten seconds. Nobody else's RAS is asked: all who listen at
the port have to be this user's, and the answer has to name this process.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from laggard.nccl.ras import DEFAULT_PORT, RasError, ask

_TRIES: Final = 2  # where several jobs of a user listen, a connection reaches any of them
_LISTENS: Final = "0A"  # TCP_LISTEN, include/net/tcp_states.h
_MAX_BYTES: Final = 4 << 20
_TABLES: Final = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


class _Listener(NamedTuple):
    host: str
    owner: int


def report_later(told: Callable[[bytes], None]) -> None:
    """Has told(...) called, on a thread, with what this job's RAS answers in JSON; never where nobody listens or there
    is no good answer. Raises RuntimeError where no thread can be had."""
    threading.Thread(target=_report, args=(told,), name="laggard-ras", daemon=True).start()


def _report(told: Callable[[bytes], None]) -> None:
    try:
        answer = own_report(os.environ)
        if answer:
            told(answer)
    except (OSError, ValueError):  # the folder is gone, or full
        return


def own_report(environ: Mapping[str, str], tables: tuple[str, ...] = _TABLES) -> bytes:
    """Returns the answer of this job's RAS; empty where there is none."""
    port = _port(environ)
    listeners = [each for table in tables for each in _listeners(table, port)]
    if not listeners or any(each.owner != os.geteuid() for each in listeners):
        return b""
    for _ in range(_TRIES):
        try:
            answer = ask(listeners[0].host, port)
        except RasError:
            return b""
        if re.search(rb'"pid": ?%d\b' % os.getpid(), answer):
            return answer
    return b""


def _port(environ: Mapping[str, str]) -> int:
    port = environ.get("NCCL_RAS_ADDR", "").rpartition(":")[2]
    return int(port) if port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16 else DEFAULT_PORT


def _listeners(table: str, port: int) -> list[_Listener]:
    """Those of a table of sockets as proc(5) describes it: `N: ADDRESS:PORT ADDRESS:PORT STATE ... UID ...`."""
    try:
        with open(table, "rb") as file:
            lines = file.read(_MAX_BYTES).decode("ascii", "replace").splitlines()[1:]
    except OSError:
        return []
    rows = (line.split() for line in lines)
    wanted = f"{port:04X}"
    return [
        _Listener(_host(address), int(row[7]))
        for row in rows
        if len(row) > 7 and row[3] == _LISTENS and row[7].isdecimal()
        for address, _, its_port in [row[1].partition(":")]
        if its_port == wanted
    ]


def _host(address: str) -> str:
    """The address to connect to: each word of four bytes is written as a number of this machine's order."""
    words = [int(address[place : place + 8], 16).to_bytes(4, sys.byteorder) for place in range(0, len(address), 8)]
    raw = b"".join(words)
    if not any(raw):
        return "127.0.0.1" if len(raw) == 4 else "::1"
    import ipaddress  # few need it

    return str(ipaddress.ip_address(raw))
