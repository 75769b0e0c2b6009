"""Flags and logging that the agent and the collector share. The flags are named as in Prometheus' exporters."""

from __future__ import annotations

import argparse
import logging
import sys


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="settings in YAML; flags override them")


def add_listen_flag(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds the flag. `default` is for the help text alone: a flag that is not given is None, so that the settings' file
    can supply the address."""
    parser.add_argument(
        "--web.listen-address",
        dest="listen_address",
        metavar="HOST:PORT",
        help=f"where to serve; :PORT is every interface, port 0 any free one (default: {default})",
    )


def add_log_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log.level",
        dest="log_level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="the lowest level of laggard's messages on standard error (default: info)",
    )


def log_to_stderr(level: str) -> None:
    """Logs to standard error: laggard's own loggers from `level` on, all others from warning on."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("laggard").setLevel(level.upper())
