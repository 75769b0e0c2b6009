"""What the agent of this node found a moment ago, so that a prolog need not look again.

The port is anybody's while no agent has it, and a forged `ok` would open the gate (a forged failure would close it):
so the answer counts only from a listener that root, this user or the user `laggard` owns, only under this node's
name, only while it is fresh, and only where it holds every probe that the gate itself would run.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final, NamedTuple

from laggard.http.client import ClientResponse, NoResponse, get
from laggard.model import REPORT_SCHEMA, Report
from laggard.probes.runner.report import places_are_complete
from laggard.wire import WireError, decode

ANSWER_SECONDS: Final = 0.2
SERVICE_USER: Final = "laggard"

_LISTENING: Final = "0A"  # TCP_LISTEN of the kernel's include/net/tcp_states.h


class Fresh(NamedTuple):
    report: Report
    age_seconds: float


def ask_agent(port: int, node: str, most_seconds: float, probes: Collection[str]) -> Fresh:
    """The agent's last report, at most `most_seconds` old. Raises NoResponse, which says why it cannot stand in."""
    owners = _owners(port)
    if not owners:
        raise NoResponse("nothing listens there")
    strangers = owners - {0, os.geteuid(), _service_uid()}
    if strangers:
        raise NoResponse(f"user {min(strangers)} listens there, who is not trusted")
    response = get(f"http://127.0.0.1:{port}/api/v1/report", ANSWER_SECONDS)
    age = _age(response)
    if age > most_seconds:
        raise NoResponse(f"its report is {age:.0f} s old")
    return Fresh(_believed(response.body, node, probes), age)


def _age(response: ClientResponse) -> float:
    """An agent that has no complete round to tell of sends no age."""
    age = response.headers.get("age", "")
    if not (age.isascii() and age.isdecimal() and len(age) < 10):
        raise NoResponse("it has no complete report yet")
    return float(age)


def _believed(data: bytes, node: str, probes: Collection[str]) -> Report:
    try:
        report = decode(data, Report)
    except WireError as error:
        raise NoResponse(f"its answer is no report: {error}") from None
    if report.schema != REPORT_SCHEMA:
        raise NoResponse(f"its answer is no {REPORT_SCHEMA}")
    if report.node != node:
        raise NoResponse(f"it speaks for {report.node}, and this is {node}")
    missing = sorted(set(probes) - {result.name for result in report.probes})
    if missing:
        raise NoResponse(f"it does not run probe {missing[0]}")
    if not places_are_complete(report):
        raise NoResponse("it does not name each probe's findings: it is older than this gate")
    return report


def _owners(port: int) -> set[int]:
    """The users who listen on `port`, of whatever address: one of them answers."""
    owners: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        sockets = [line.split() for line in lines]
        owners.update(int(it[7]) for it in sockets if it[1].endswith(f":{port:04X}") and it[3] == _LISTENING)
    return owners


def _service_uid() -> int:
    """Root's where there is no such user: nobody else's."""
    import pwd

    try:
        return pwd.getpwnam(SERVICE_USER).pw_uid
    except KeyError:
        return 0
