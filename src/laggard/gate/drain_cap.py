"""Asks the collector whether this node may be drained, before every drain and every rejected job.

Where all nodes fail at once, the cause is a defect of the checks, or of something that the nodes share (the fabric
manager, a file server), and to drain them all would be the outage. So no answer means no: a collector that cannot be
reached is most likely away for the same reason. The price is one more job on a sick node, as before laggard. A node
that it let be drained before is another matter: see drains_answer().
"""

from __future__ import annotations

import sys
import time
from typing import Final

import msgspec
from msgspec import structs

from laggard import wire
from laggard.gate.memory import GRANT_FILE, forget_grant
from laggard.gate.settings import COLLECTOR_SECONDS, NO_CAP, PATIENCE_SECONDS
from laggard.gate.slurm import SECONDS
from laggard.gate.time_limit import TimeLimit
from laggard.kit.address import as_url, without_login
from laggard.kit.constants import COLLECTOR_PORT
from laggard.kit.http_client import Busy, ClientResponse, NoResponse, NotReached, get
from laggard.kit.words import printable_line, seconds_text
from laggard.probes.errors import Unknown
from laggard.probes.runner.state_file import read_state, replace_state
from laggard.wire import WireError
from laggard.wire.nodes import DrainsDocument

_KEPT_FOR_SLURM_SECONDS: Final = 3.0
"""The part of the gate's time that patience with a busy collector leaves for the drain."""
_KNOWN_SECONDS: Final = 10.0
"""Agent and collector need this long to tell of what has just begun: the agent looks within five seconds after a job
failed, and the collector asks it at once, where a gate asked for its node."""


def drain_refusal(collector: str | None, node: str, limit: TimeLimit, waits: bool = False) -> str:
    """The reason why `node` may not be drained; empty if it may be. `collector`: its URL, or `none` for no cap.
    `waits`: for the collector to learn that the node fails, since each job that comes meanwhile is lost."""
    if not collector:
        return "no collector is named"
    until = time.monotonic() + _KNOWN_SECONDS
    while seconds := limit.to_decide(COLLECTOR_SECONDS):
        if collector == NO_CAP:
            return ""
        refusal, is_known = _asked(collector, node, limit, seconds)
        if is_known or not waits or time.monotonic() > until or not limit.to_decide(COLLECTOR_SECONDS, 2 * SECONDS):
            return refusal
        time.sleep(4 * _PAUSE_SECONDS)
    return "the gate's time was over before"


def _asked(collector: str, node: str, limit: TimeLimit, seconds: float) -> tuple[str, bool]:
    """The refusal, and whether no later answer can be another one: the collector knows that the node fails."""
    from urllib.parse import quote  # sockets are slow to import, and few runs need them

    from laggard.kit.http_client import NoResponse

    url = f"{as_url(collector, COLLECTOR_PORT)}/api/v1/drains?node={quote(node, safe='')}"
    try:
        answer = drains_answer(url, seconds, max(seconds, limit.to_decide(PATIENCE_SECONDS, _KEPT_FOR_SLURM_SECONDS)))
    except (NoResponse, WireError) as error:
        return f"no answer from the collector {without_login(collector)}: {error}", True
    return _refusal(answer, node, without_login(collector)), answer.asker_fails or not answer.asker_known


def _refusal(answer: DrainsDocument, node: str, collector: str) -> str:
    if answer.answering and not answer.asker_known:
        return (
            f"the collector {collector} knows no node {node}: the agent has to run here and to report "
            f"as {node}, and the collector to ask it (`targets` in collector.yaml)"
        )
    if not answer.may_drain:
        return f"the cap on drains: {printable_line(answer.reason, 300)}"
    if not answer.asker_fails:  # else it is not counted for the nodes that ask next
        return f"the collector does not know yet that {node} fails"
    return ""


# The collector's answer about drains, also while it gives none: then its last that let this node be drained holds for a
# while. Else who keeps the collector busy, or its answers away, would have a node pass that was rejected before.
#
# That makes no outage: what holds was within the cap when the collector said it, and is void as soon as the gate, or
# the collector, has seen this node well.

HOLDS_SECONDS: Final = 6 * 3600.0
_PAUSE_SECONDS: Final = 0.1


class KeptAnswer(msgspec.Struct, frozen=True):
    """What the collector at `url`, whose query names the node, said at `at` (Unix seconds, this machine's clock)."""

    url: str
    at: float
    answer: DrainsDocument
    laggard_drains: int = 1  # the version of this document


def drains_answer(url: str, seconds: float, patience: float = 0.0) -> DrainsDocument:
    """The answer of `url`, asked again while the collector is busy; else the last, where that holds. It is asked for
    `seconds`; for `patience` where that is longer and no answer holds: then a node that is unfit would pass. Raises
    NoResponse and WireError."""
    try:
        answer = wire.decode(_ask(url, seconds, seconds if _kept(url) else patience).body, DrainsDocument)
    except (NoResponse, wire.WireError) as error:
        why = f"is busy ({error})" if isinstance(error, Busy) else f"gives no answer ({error})"
        kept = _kept(url)
        if kept is None and isinstance(error, Busy):
            raise Busy(f"it is busy: {error}") from None
        if kept is None:
            raise
        _say_that_it_holds(why, kept)
        return kept.answer
    if not answer.answering and (kept := _kept(url)) is not None:  # it sees nobody: it has just started, or is overrun
        _say_that_it_holds(f"says: {printable_line(answer.reason, 200)}", kept)
        return kept.answer
    if answer.may_drain and not answer.asker_fails and not answer.asker_is_well and _kept(url) is not None:
        return structs.replace(answer, asker_fails=True)  # its agent's report is late: the gate's own is here
    _keep(url, answer)
    return answer


def _say_that_it_holds(why: str, kept: KeptAnswer) -> None:
    age = seconds_text(max(0.0, time.time() - kept.at))
    print(f"gate: the collector {why}: its answer of {age} ago holds", file=sys.stderr)


def _ask(url: str, seconds: float, patience: float) -> ClientResponse:
    """The first try takes `seconds` at most, the others what is left of `patience`: where the first packet of a
    connection was dropped, a new one is there sooner. Raises NoResponse."""
    began = time.monotonic()
    end = began + max(seconds, patience)
    until = began + seconds
    while True:
        try:
            return get(url, max(_PAUSE_SECONDS, until - time.monotonic()))
        except (Busy, NotReached):
            if time.monotonic() + 2 * _PAUSE_SECONDS > end:
                raise
            time.sleep(_PAUSE_SECONDS)
            until = end if time.monotonic() >= until - 2 * _PAUSE_SECONDS else until


def _kept(url: str) -> KeptAnswer | None:
    try:
        kept = wire.decode(read_state(GRANT_FILE), KeptAnswer)
    except (Unknown, wire.WireError):
        return None
    return kept if kept.url == url and 0 <= time.time() - kept.at < HOLDS_SECONDS else None


def _keep(url: str, answer: DrainsDocument) -> None:
    """Where it cannot be kept, the gate does as without it."""
    let_go = answer.may_drain and answer.asker_fails
    try:
        if let_go:
            replace_state(GRANT_FILE, wire.encode(KeptAnswer(url, time.time(), answer)))
        else:
            forget_grant()
    except Unknown:
        return
