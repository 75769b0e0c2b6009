"""`laggard top`: the verdict, the ranks and the nodes as a collector sees them, drawn anew every few seconds."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from laggard.collector.job_words import ask_for
from laggard.collector.web.documents import HeatDocument, SummaryDocument
from laggard.kit.errors import UsageError
from laggard.kit.flags import JOB_HELP, add_collector, duration
from laggard.kit.terminal import terminal_console
from laggard.kit.users import by_uid
from laggard.model import EXIT_CODES
from laggard.wire.nodes import NodesDocument

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_ROWS = 256
"""The rows of ranks that are asked for: more fit on no screen, and of a larger job a row is several ranks."""


class _Known(NamedTuple):
    summary: SummaryDocument
    ranks: HeatDocument
    nodes: NodesDocument


def configure(parser: argparse.ArgumentParser) -> None:
    add_collector(parser)
    parser.add_argument("--job", metavar="[USER:]NAME", help=JOB_HELP)
    parser.add_argument(
        "--interval", type=duration(0.1, 3600), default=2.0, metavar="TIME", help="between two looks (default: 2s)"
    )
    parser.add_argument("--once", action="store_true", help="draw once and end, as it does where there is no terminal")


def main(arguments: argparse.Namespace) -> int:
    """Ends with the exit status of the last verdict: 0 none is slow, 1 a culprit, 2 unknown."""
    from rich.console import Console

    console = terminal_console(lasting=True) or Console()
    known = _ask(arguments)
    if arguments.once or not sys.stdout.isatty():
        console.print(_drawn(known, console.width, 1000))
        return EXIT_CODES[known.summary.location.verdict]
    return _watch(arguments, known, console)


def _watch(arguments: argparse.Namespace, known: _Known, console: Console) -> int:
    """Watches until it is interrupted. Where the collector does not answer, the last screen stays, with that said."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    trouble = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                drawn = _drawn(known, console.width, console.height - 1)
                live.update(Group(Text(trouble, style="bold red"), drawn) if trouble else drawn, refresh=True)
                time.sleep(arguments.interval)
                try:
                    known, trouble = _ask(arguments), ""
                except UsageError as error:
                    trouble = f"{error}; below is what it said last, at {time.strftime('%H:%M:%S')} or before"
    except KeyboardInterrupt:
        return EXIT_CODES[known.summary.location.verdict]


def _drawn(known: _Known, width: int, height: int) -> RenderableType:
    from laggard.collector.top_screen import screen

    return screen(known.summary, known.ranks, known.nodes, width, height)


def _ask(arguments: argparse.Namespace) -> _Known:
    """Raises UsageError where no collector answers, or several users have such a job."""
    named = by_uid(arguments.job)
    job = {} if named is None else {"job": named}
    summary = ask_for(arguments.collector, "summary", job, SummaryDocument)
    shown = {"job": summary.job} if summary.job else job
    ranks = ask_for(arguments.collector, "ranks", {**shown, "rows": str(_ROWS)}, HeatDocument)
    return _Known(summary, ranks, ask_for(arguments.collector, "nodes", {}, NodesDocument))
