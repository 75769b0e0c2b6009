"""`laggard agent --idle-rings`: asks the collector whether a ring is due, runs it while the node is idle, and ends it
within a second of a job's arrival. Off unless it is started, and it starts with a token alone."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from laggard.address import without_login
from laggard.agent.idle_rings.arrivals import Arrivals, hidden_processes, make_arrivals
from laggard.agent.idle_rings.ask import NoAnswer, ask_for_ring
from laggard.agent.idle_rings.ring import LOOK_SECONDS, RingOutcome, find_user, run_ring
from laggard.agent.idle_rings.settings import IdleRingsSettings, find_tokens, resolve_settings
from laggard.agent.idle_rings.state import StateFolder
from laggard.daemon import add_config_flag, add_log_flags, asked_about_settings, log_to_stderr
from laggard.errors import UsageError
from laggard.rings.authentication import token_of_ring
from laggard.rings.keep import keep_share
from laggard.rings.membership import Membership
from laggard.rings.order import RingOrder
from laggard.wire.idle_rings import RingTask

log = logging.getLogger("laggard.idle_rings")

_RETRY_SECONDS: Final = 30.0
_MIN_ASK_SECONDS, _MAX_ASK_SECONDS = 1.0, 3600.0
"""The bounds of the time between two questions, whatever the collector says."""
_LATEST_SECONDS: Final = 7200.0
"""The longest time that a ring may be planned ahead, and last."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_config_flag(parser)
    parser.add_argument("--collector", metavar="URL", help="the collector that plans the rings, http://HOST:PORT")
    add_log_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    """Runs until SIGTERM or SIGINT, then returns 0. Raises UsageError where it cannot start."""
    settings = resolve_settings(arguments, os.environ)
    tokens = find_tokens(settings)
    if asked_about_settings(arguments, settings):
        return 0
    if os.geteuid() == 0:
        find_user(settings.user)
    if hidden_processes():
        raise UsageError("other users' processes are hidden from this one (hidepid), so that a job would not be seen")
    log_to_stderr(arguments.log_level, arguments.log_format)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    IdleRings(settings, tokens, stopped).run()
    return 0


class IdleRings:
    def __init__(
        self, settings: IdleRingsSettings, tokens: Callable[[], tuple[str, ...]], stopped: threading.Event
    ) -> None:
        """`tokens`: those that are accepted now, of which the first is sent."""
        self._settings, self._tokens, self._stopped = settings, tokens, stopped
        self._state = StateFolder()
        self._arrivals: Arrivals = make_arrivals(settings.rank_dir, settings.node)

    def run(self) -> None:
        self._state.make()
        self._state.note_running(None)  # of one that was killed
        log.info("node %s asks %s whether a ring is due", self._settings.node, without_login(self._settings.collector))
        while not self._stopped.is_set():
            self._stopped.wait(self._once())

    def _once(self) -> float:
        """Asks, and takes part in the ring that is due. Returns after how many seconds to ask again."""
        busy = self._arrivals.look()
        if busy:
            log.debug("not idle: %s", busy)
            return _RETRY_SECONDS
        try:
            due = ask_for_ring(self._settings.collector, self._settings.node, self._tokens())
        except NoAnswer as error:
            log.warning("%s", error)
            return _RETRY_SECONDS
        if due.ring is None:
            log.debug("no ring is due: %s", due.reason)
        elif refusal := _refusal(due.ring, self._settings.node):
            log.warning("a ring is refused: %s", refusal)
        else:
            self._take_part(due.ring)
        return min(max(due.ask_again_seconds, _MIN_ASK_SECONDS), _MAX_ASK_SECONDS)

    def _take_part(self, task: RingTask) -> None:
        log.info("a ring of %d nodes begins in %.0f s", len(task.nodes), task.begin_seconds)
        if self._wait_idle(task.begin_seconds):
            return
        tokens = tuple(token_of_ring(token, task.id) for token in self._tokens())
        outcome = run_ring(
            _order(task, tokens, self._settings), self._settings.user, self._arrivals, self._state, self._stopped.is_set
        )
        self._note(outcome)

    def _wait_idle(self, seconds: float) -> bool:
        """Whether a job came, or this is to stop, before the ring begins."""
        for _ in range(int(seconds / LOOK_SECONDS)):
            if self._stopped.wait(LOOK_SECONDS):
                return True
            if busy := self._arrivals.look():
                log.info("the ring does without this node: %s", busy)
                return True
        return False

    def _note(self, outcome: RingOutcome) -> None:
        if outcome.abort_seconds is not None:
            log.info("ended the ring in %.3f s: %s", outcome.abort_seconds, outcome.came)
        else:
            log.info("the ring ended, %s: %s", outcome.outcome, outcome.text)
        if outcome.end is not None and outcome.end.share is not None:
            keep_share(outcome.end.share, pairs=outcome.end.pairs)
        self._state.note_outcome(outcome.outcome, outcome.abort_seconds)


def _order(task: RingTask, tokens: tuple[str, ...], settings: IdleRingsSettings) -> RingOrder:
    second = (task.second_host, task.port)
    place = Membership(task.number, len(task.nodes), task.host, task.port, names=task.nodes, second=second)
    return RingOrder(
        place=place,
        tokens=tokens,
        device=settings.device,
        seconds=task.seconds,
        join_seconds=task.join_seconds,
        deadline_seconds=task.deadline_seconds,
        modest=True,
        node=settings.node,
    )


def _refusal(task: RingTask, node: str) -> str:
    """The reason why a ring is none for this node; empty: it is. The collector is trusted with what is in its bounds
    alone."""
    if not (3 <= len(task.nodes) <= 1024 and 0 <= task.number < len(task.nodes) and task.nodes[task.number] == node):
        return "it is not this node's"
    if not (0 < task.port < 65536 and task.host and task.second_host):
        return "it has no address"
    limits = (task.begin_seconds, task.join_seconds, task.seconds, task.deadline_seconds)
    if not all(0 <= seconds <= _LATEST_SECONDS for seconds in limits):
        return "its times make no sense"
    return ""
