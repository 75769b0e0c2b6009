"""`laggard agent --idle-rings`: asks the collector whether a ring is due, runs it while the node is idle, and ends it
within a second of a job's arrival. Off unless it is started, and it starts with a token alone."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from msgspec import structs

from laggard.agent.idle_rings.ring import (
    LOOK_SECONDS,
    Arrivals,
    RingOutcome,
    find_user,
    hidden_processes,
    make_arrivals,
    run_ring,
)
from laggard.agent.idle_rings.state import StateFolder
from laggard.kit.address import as_url, without_login
from laggard.kit.config import Settings, load
from laggard.kit.constants import COLLECTOR_PORT
from laggard.kit.daemon import add_config_flag, add_log_flags, asked_about_settings, log_to_stderr
from laggard.kit.environment import ENV_RING_TOKEN_FILE, node_name, rank_dir
from laggard.kit.errors import UsageError
from laggard.kit.flags import add_collector
from laggard.kit.http_client import NoResponse, post
from laggard.kit.secret_files import TokenFile
from laggard.kit.words import printable_line
from laggard.rings.authentication import new_nonce, token_of_ring
from laggard.rings.membership import Membership, RingOrder
from laggard.rings.place import read_tokens
from laggard.rings.run import keep_share
from laggard.wire import WireError, decode, encode
from laggard.wire.idle_rings import RingAsk, RingDue, RingTask
from laggard.wire.signing import RING_AGENT, RING_COLLECTOR, signed, signer

# Asks the collector whether a ring is due. Both sides prove that they know the token: who merely has the collector's
# address can have nothing started here.

_ANSWER_SECONDS: Final = 10.0


class NoAnswer(Exception):
    """There is no answer to trust. The text says why."""


def ask_for_ring(collector: str, node: str, tokens: Sequence[str]) -> RingDue:
    """`tokens`: of which the first signs the question, and either the answer. Raises NoAnswer."""
    ask = signed(tokens[0], RING_AGENT, RingAsk(node, time.time(), new_nonce()))
    try:
        due = decode(post(f"{collector}/api/v1/rings/due", encode(ask), _ANSWER_SECONDS).body, RingDue)
    except (NoResponse, WireError) as error:
        raise NoAnswer(f"the collector {without_login(collector)}: {printable_line(str(error), 300)}") from None
    if due.nonce != ask.nonce or signer(tokens, RING_COLLECTOR, due) is None:
        raise NoAnswer(
            f"the collector {without_login(collector)} does not prove that it knows the token: nothing is started"
        )
    return due


# The settings of `laggard agent --idle-rings`: a YAML file. Durations in seconds.


class IdleRingsSettings(Settings, frozen=True):
    collector: str = ""
    """The collector that plans the rings, as http://HOST:PORT. It has to be given."""
    token_file: str = ""
    """A file with the secret that the collector's `ring_token_file` has, read anew when it changes. Where empty: the
    file that LAGGARD_RING_TOKEN_FILE names, else LAGGARD_RING_TOKEN, which holds until the end. Without one nothing is
    asked, and nothing starts."""
    node: str = ""
    """The name that this machine's agent reports. Where empty: LAGGARD_NODE, else the host name."""
    rank_dir: str = ""
    """The directory in which ranks write their files, as the agent's. Empty: LAGGARD_RANK_DIR, else /run/laggard/ranks
    if that exists, else /dev/shm/laggard."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """NCCL on GPUs (`cuda`), gloo on CPUs (`cpu`), or what the machine has (`auto`)."""
    user: str = "laggard"
    """The user to whom the ring's own processes belong where root starts this; any other user's are his own."""


def resolve_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> IdleRingsSettings:
    """Returns the settings with every empty one filled in. Raises UsageError."""
    settings = load(arguments.config, IdleRingsSettings) if arguments.config else IdleRingsSettings()
    if arguments.collector is not None:
        settings = structs.replace(settings, collector=as_url(arguments.collector, COLLECTOR_PORT))
    if not settings.collector.startswith(("http://", "https://")):
        raise UsageError(
            f"collector is {without_login(settings.collector)!r}: give the collector that plans rings, http://HOST:PORT"
        )
    return structs.replace(
        settings,
        collector=settings.collector.rstrip("/"),
        node=settings.node or node_name(environ),
        rank_dir=settings.rank_dir or rank_dir(environ),
    )


def find_tokens(settings: IdleRingsSettings) -> Callable[[], tuple[str, ...]]:
    """Returns what tells the tokens, of which the first is sent; those of a file are read anew when it changes. Raises
    UsageError where there is none."""
    if settings.token_file:
        return TokenFile(settings.token_file, "token_file").accepted
    if named := os.environ.get(ENV_RING_TOKEN_FILE):
        return TokenFile(named, ENV_RING_TOKEN_FILE).accepted
    tokens = read_tokens(None)
    if not tokens:
        raise UsageError(
            "idle rings are off: no token. Give token_file, with the secret that the collector's ring_token_file has"
        )
    return lambda: tokens


log = logging.getLogger("laggard.idle_rings")

_RETRY_SECONDS: Final = 30.0
_MIN_ASK_SECONDS, _MAX_ASK_SECONDS = 1.0, 3600.0
"""The bounds of the time between two questions, whatever the collector says."""
_LATEST_SECONDS: Final = 7200.0
"""The longest time that a ring may be planned ahead, and last."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_config_flag(parser)
    add_collector(parser, "the collector that plans the rings, http://HOST:PORT", None)
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
