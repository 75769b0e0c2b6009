"""`laggard collector`: gathers the agents, names the culprit, shows it."""

from __future__ import annotations

import argparse
import logging
import sys

from laggard.collector.gather import Gatherer
from laggard.collector.locate import locate
from laggard.collector.serve import serve
from laggard.collector.settings import LISTEN_ADDRESS, settle
from laggard.collector.targets import LOCAL_AGENT, parse_targets
from laggard.http import bind


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="settings in YAML; flags win over it")
    parser.add_argument(
        "--target",
        dest="targets",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help=f"an agent to ask, as HOST, HOST:PORT or URL; repeatable (default: {LOCAL_AGENT})",
    )
    parser.add_argument(
        "--web.listen-address",
        dest="listen_address",
        metavar="HOST:PORT",
        help=f"where to serve; :PORT is every interface, port 0 any free one (default: {LISTEN_ADDRESS})",
    )
    parser.add_argument("--interval", type=float, metavar="SECONDS", help="between two rounds (default: 5)")
    parser.add_argument(
        "--log.level", dest="log_level", choices=("debug", "info", "warning", "error"), default="info", help="to stderr"
    )


def main(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then 0. Raises UsageError where it cannot start."""
    settings = settle(arguments.config, arguments.targets, arguments.listen_address, arguments.interval)
    targets = parse_targets(settings.targets)
    with bind(settings.listen_address) as listener:
        _log_to_stderr(arguments.log_level)
        serve(listener, Gatherer(targets, settings, locate), settings)
    return 0


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("laggard").setLevel(level.upper())
