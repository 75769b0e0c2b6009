"""What the agent and the collector have in common as daemons: flags named as exporters name them, and the log."""

from __future__ import annotations

import argparse
import logging
import sys


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="settings in YAML; flags win over it")


def add_listen_flag(parser: argparse.ArgumentParser, default: str) -> None:
    """`default` is only told: None stands for a flag that was not given, so that the settings' file can win."""
    parser.add_argument(
        "--web.listen-address",
        dest="listen_address",
        metavar="HOST:PORT",
        help=f"where to serve; :PORT is every interface, port 0 any free one (default: {default})",
    )


def add_log_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log.level", dest="log_level", choices=("debug", "info", "warning", "error"), default="info", help="to stderr"
    )


def log_to_stderr(level: str) -> None:
    """laggard's own loggers at `level`, all others from warning on."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("laggard").setLevel(level.upper())
