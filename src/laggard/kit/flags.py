"""Flags that several commands have: each is named, read and explained in one way. Standard library only, and quick to
import: the gate has them, too."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Final

from laggard.kit.constants import COLLECTOR_PORT
from laggard.kit.environment import ENV_COLLECTOR
from laggard.kit.words import TIME_UNITS, span

DEFAULT_URL: Final = f"http://127.0.0.1:{COLLECTOR_PORT}"
JOB_HELP: Final = (
    "the collector's job: its name or script, or how its name begins, with its user's name or uid where several have "
    "such a job; default: the job that loses most, else the latest"
)

_TWINS: Final = {
    "--config": ("--config.file",),
    "--format": ("-o", "--output"),
    "--job": ("--job-id",),
    "--local-ranks": ("--nproc-per-node", "--nproc_per_node"),
    "--log.format": ("--log-format",),
    "--log.level": ("--log-level",),
    "--namespace": ("-n",),
    "--node-rank": ("--node_rank",),
    "--nodes": ("--nnodes",),
    "--quiet": ("-q",),
    "--rendezvous": ("--rdzv-endpoint", "--rdzv_endpoint"),
    "--verbose": ("-v",),
}
"""Other words for a flag, whichever command has it: those of kubectl, torchrun and Prometheus. Help shows the short."""


def duration(least: float, most: float, bare: str = "s") -> Callable[[str], float]:
    """What reads a flag's time, from `least` to `most` seconds, into seconds. `bare`: the unit of a number without."""

    def read(text: str) -> float:
        seconds = span(text)
        if seconds is None:
            seconds = span(text + bare)
        if seconds is None or not least <= seconds <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:80]!r} is no time from {_text(least)} to {_text(most)}: write 90s, 5m, 12h or 2d"
            )
        return seconds

    return read


def _text(seconds: float) -> str:
    unit = max(
        (unit for unit, size in TIME_UNITS.items() if unit != "w" and seconds >= size), key=TIME_UNITS.__getitem__
    )
    return f"{seconds / TIME_UNITS[unit]:g}{unit}"


def add_collector(
    place: argparse._ActionsContainer,
    what: str = "the collector, as HOST:PORT or URL",
    default: str | None = DEFAULT_URL,
) -> None:
    """Adds --collector, whose default is LAGGARD_COLLECTOR, else `default`."""
    last = f", else {default}" if default else ""
    place.add_argument(
        "--collector",
        metavar="URL",
        default=os.environ.get(ENV_COLLECTOR) or default,
        help=f"{what} (default: {ENV_COLLECTOR}{last})",
    )


def complete(parser: argparse.ArgumentParser) -> None:
    """Gives the parser what all have: --quiet and --json where it has --format, and the other words for its flags."""
    known = parser._option_string_actions
    if "--format" in known:
        if "--quiet" not in known:
            parser.add_argument("--quiet", action="store_true", help="print nothing: the exit status is the answer")
        parser.add_argument("--json", action="store_const", const="json", dest="format", help=argparse.SUPPRESS)
    for flag in known.keys() & _TWINS:
        action = known[flag]
        for twin in _TWINS[flag]:
            if known.setdefault(twin, action) is action and len(twin) == 2:
                action.option_strings = [twin, *action.option_strings]
