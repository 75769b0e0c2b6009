"""`laggard agent`: the daemon on each node. It runs the probes, reads the rank files, and serves both over HTTP."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from functools import partial
from typing import Final

from laggard.agent.gate.serving import AcceptedFile, answering_prologs
from laggard.agent.prober.loop import ProbeLoop, know_probes
from laggard.agent.prober.process import Prober, prober_command
from laggard.agent.ranks.directory import secure
from laggard.agent.ranks.end import ExitWatch
from laggard.agent.ranks.reader import RankCache, RankFiles
from laggard.agent.ras.asker import RasAsker
from laggard.agent.settings import LISTEN_ADDRESS, PROFILE, AgentSettings, resolve_settings, unwise
from laggard.agent.traffic.watch import TrafficWatch
from laggard.agent.web.routes import Router, error_response
from laggard.agent.web.stacks import StackService, read_stacks_tokens
from laggard.kit.constants import ACCEPTED_FILE
from laggard.kit.daemon import (
    add_config_flag,
    add_listen_flag,
    add_log_flags,
    asked_about_settings,
    give_memory_back,
    log_to_stderr,
)
from laggard.kit.http_message import bind, split_address, url_of
from laggard.kit.http_server import Server
from laggard.kit.service_manager import supervised
from laggard.kit.web_config import load_web_config
from laggard.probes.profiles import PROFILES, find_profile

log = logging.getLogger("laggard.agent")

PROBER_START_SECONDS: Final = 10.0
"""The time for the prober to start, on top of a round's own deadline."""

MAX_KEPT: Final = 4
"""The most collectors that keep a connection while they ask nothing; each takes a thread, some 17 KiB."""

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def configure(parser: argparse.ArgumentParser) -> None:
    add_config_flag(parser)
    add_listen_flag(parser, LISTEN_ADDRESS)
    parser.add_argument("--rank-dir", metavar="DIR", help="where this node's ranks write their files")
    parser.add_argument("--node", metavar="NAME", help="the name to report this machine under (default: its host name)")
    parser.add_argument(
        "--profile", metavar="NAME|FILE", help=f"the probes' profile: {', '.join(PROFILES)} (default: {PROFILE})"
    )
    add_log_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then returns 0. Raises UsageError where it cannot start."""
    settings = resolve_settings(arguments, os.environ)
    profile = find_profile(settings.profile)
    known_probes = know_probes(settings.profile, settings.node)  # raises on a bad profile, as the prober would unheard
    split_address(settings.listen_address)  # raises where it is none
    tls = load_web_config(settings.web_config_file)
    stacks_tokens = read_stacks_tokens(settings.stacks, settings.stacks_token_file)
    if asked_about_settings(arguments, settings, [*unwise(settings, profile.deadline_seconds)]):
        return 0
    with bind(settings.listen_address) as listener:
        log_to_stderr(arguments.log_level, arguments.log_format)
        give_memory_back()
        # Blocked before any thread starts, so that the signals wait for sigwait and interrupt no thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        deadline_seconds = profile.deadline_seconds + PROBER_START_SECONDS
        prober = Prober(prober_command(settings.profile), settings.node, deadline_seconds)
        interval = settings.probe_interval_seconds
        changed = (
            f"{os.path.dirname(os.path.dirname(settings.gate_socket))}/gate-changed" if settings.gate_socket else ""
        )
        probe_loop = ProbeLoop(prober.run_probes, settings.node, interval, prober.run_variants, changed)
        ranks = RankFiles(settings.rank_dir, settings.node, exits=ExitWatch())
        cached_ranks = RankCache(ranks.read, settings.rank_interval_seconds)
        ras = _ras_asker(settings, cached_ranks)
        traffic = TrafficWatch(lambda: cached_ranks.get().ranks)
        accepted = AcceptedFile(ACCEPTED_FILE)
        router = Router(
            settings.node,
            ranks,
            cached_ranks,
            probe_loop,
            ras,
            traffic,
            turned_away=lambda: server.turned_away,
            stacks=StackService.made(ranks, cached_ranks, settings.stacks, stacks_tokens),
            judged=partial(accepted.judged, warnings_fail=profile.warnings_fail),
        )
        server = Server(listener, router.handle, error_response, tls=tls, max_kept=MAX_KEPT)
        log.info("listening on %s", url_of(listener, tls))
        log.info("node %s, rank files in %s", settings.node, settings.rank_dir)
        if unsafe := secure(settings.rank_dir):
            log.warning(unsafe)
        probe_loop.start()
        if ras:
            ras.start()
        traffic.start()
        server.start()
        prologs = answering_prologs(settings.gate_socket, probe_loop, known_probes, accepted.get)
        with prologs, supervised(url_of(listener, tls)):
            log.info("%s: stopping", signal.Signals(signal.sigwait(_STOP_SIGNALS)).name)
        server.stop()
        probe_loop.stop()
        traffic.stop()
        if ras:
            ras.stop()
        prober.stop()
    return 0


def _ras_asker(settings: AgentSettings, cached_ranks: RankCache) -> RasAsker | None:
    """Returns what asks NCCL RAS; None where that is switched off."""
    if not settings.ras_interval_seconds:
        return None

    def hooked() -> list[tuple[int, int]]:
        return [(row.owner, row.pid) for row in cached_ranks.get().ranks if row.state == "running"]

    host, port = split_address(settings.ras_address)
    return RasAsker(host or "localhost", port, settings.ras_interval_seconds, hooked)
