"""The last report of this node's agent, which saves a prolog from running the probes again.

While no agent runs, any user can listen on its port, and a forged `ok` would open the gate (a forged failure would
close it). So an answer counts only from a listener that root, this user or the user `laggard` owns, only under this
node's name, only while it is fresh, and only where it holds every probe that the gate itself would run.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final, NamedTuple

from laggard.kit.address import LISTENING, tcp_sockets
from laggard.kit.errors import UsageError
from laggard.kit.http_client import SPEAKS_TLS, ClientResponse, NoResponse, get
from laggard.model import REPORT_SCHEMA, Report
from laggard.probes.runner.report import places_are_complete
from laggard.wire import WireError, decode

ANSWER_SECONDS: Final = 0.2
_PATH: Final = "/api/v1/report"
SERVICE_USER: Final = "laggard"


class CachedReport(NamedTuple):
    """A report of the agent, and how long ago it was made."""

    report: Report
    age_seconds: float


def fetch_cached_report(port: int, node: str, max_age_seconds: float, probes: Collection[str]) -> CachedReport:
    """The last report of the agent on `port`. `node` is its name, `probes` are the names of the probes that it must
    hold. Raises NoResponse with the reason why there is no report that the gate can use."""
    users = _listening_users(port)
    if not users:
        raise NoResponse("nothing listens there")
    untrusted = users - {0, os.geteuid(), _service_uid()}
    if untrusted:
        raise NoResponse(f"user {min(untrusted)} listens there, who is not trusted")
    response = _ask(port)
    age = _age(response)
    if age > max_age_seconds:
        raise NoResponse(f"its report is {age:.0f} s old")
    return CachedReport(_validated(response.body, node, probes), age)


def _ask(port: int) -> ClientResponse:
    """TLS serves where the agent speaks it: who listens is known, so that the certificate need not say it."""
    try:
        return get(f"http://127.0.0.1:{port}{_PATH}", ANSWER_SECONDS)
    except NoResponse as error:
        if str(error) != SPEAKS_TLS:
            raise
    from laggard.kit.tls import own_context  # slow to import

    try:
        return get(f"https://127.0.0.1:{port}{_PATH}", ANSWER_SECONDS, own_context())
    except UsageError as error:
        raise NoResponse(str(error)) from None


def _age(response: ClientResponse) -> float:
    """The report's age in seconds, from the header Age. An agent that has completed no round sends none."""
    age = response.headers.get("age", "")
    if not (age.isascii() and age.isdecimal() and len(age) < 10):
        raise NoResponse("it has no complete report yet")
    return float(age)


def _validated(data: bytes, node: str, probes: Collection[str]) -> Report:
    try:
        report = decode(data, Report)
    except WireError as error:
        raise NoResponse(f"its answer is no report: {error}") from None
    if report.schema != REPORT_SCHEMA:
        raise NoResponse(f"its answer is no {REPORT_SCHEMA}")
    if report.node != node:
        raise NoResponse(f"it is of node {report.node}, and this is {node}")
    missing = sorted(set(probes) - {result.name for result in report.probes})
    if missing:
        raise NoResponse(f"it does not run probe {missing[0]}")
    if not places_are_complete(report):
        raise NoResponse("it does not name each probe's findings: it is older than this gate")
    return report


def _listening_users(port: int) -> set[int]:
    """The user ids of all listeners on `port`, on any address: one of them answers."""
    return {each.user for each in tcp_sockets() if each.local.endswith(f":{port:04X}") and each.state == LISTENING}


def _service_uid() -> int:
    """The id of the user `laggard`; root's, which is trusted anyway, where there is no such user."""
    import pwd

    try:
        return pwd.getpwnam(SERVICE_USER).pw_uid
    except KeyError:
        return 0
