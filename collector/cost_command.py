"""`laggard cost`: what incidents cost in GPU-hours, from a running collector or from its database."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from msgspec import structs

from laggard import __version__, wire
from laggard.collector.incidents.database import MAX_LOSSES, DatabaseError, read_losses
from laggard.collector.ledger.ledger import GROUPS, CostDocument, ledger
from laggard.collector.ledger.words import lines, report_html
from laggard.collector_client import COLLECTOR_HELP, DEFAULT_URL, answer
from laggard.errors import UsageError
from laggard.terminal.output import show
from laggard.terminal.parts import Line
from laggard.text.moments import moment_of
from laggard.text.users import user_name


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--collector", metavar="URL", default=DEFAULT_URL, help=COLLECTOR_HELP)
    source.add_argument(
        "--database",
        metavar="PLACE",
        help="read the collector's file or database (incidents_database) instead, also while it runs",
    )
    parser.add_argument(
        "--since", metavar="TIME", default="7d", help="from then on: 12h, 7d, or 2026-11-23 (UTC); default: 7d"
    )
    parser.add_argument("--by", choices=GROUPS, default="cause", help="what the rows are (default: cause)")
    parser.add_argument(
        "--price", type=float, metavar="MONEY", help="of a GPU-hour; default: the collector's gpu_hour_price"
    )
    parser.add_argument("--html", metavar="FILE", help="write a report as one page that needs no script")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")


def main(arguments: argparse.Namespace) -> int:
    """0: it was counted; 2: nothing keeps a history, so that only what is open was."""
    now = time.time()
    since = moment_of(arguments.since, now)
    if since > now:
        raise UsageError(f"--since {arguments.since} is later than now")
    price = arguments.price
    if price is not None and not 0 <= price < 1e12:
        raise UsageError(f"--price is {price}: give a number from 0 on")
    document = _document(arguments, since, now, arguments.by)
    if arguments.html:
        others = [_document(arguments, since, document.until, by) for by in GROUPS if by != arguments.by]
        _write(arguments.html, report_html((document, *others), __version__))
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode(document) + b"\n")
    else:
        written = [Line(f"The report is in {arguments.html}.")] if arguments.html else []
        show([*(Line(line) for line in lines(document)), *written])
    return 2 if document.history else 0


def _document(arguments: argparse.Namespace, since: float, until: float, by: str) -> CostDocument:
    """Raises UsageError where nothing answers, or the file cannot be read."""
    if not arguments.database:
        return _priced(_ask(arguments.collector, since, until, by), arguments.price)
    try:
        losses, runs = read_losses(arguments.database, since, None, MAX_LOSSES)
    except DatabaseError as error:
        raise UsageError(str(error)) from None
    return ledger(losses, runs, since, until, by, user_name, arguments.price)


def _priced(it: CostDocument, price: float | None) -> CostDocument:
    return it if price is None else structs.replace(it, gpu_hour_price=price, money=it.total.times(price))


def _ask(url: str, since: float, until: float, by: str) -> CostDocument:
    asked = {"since": f"{max(0.0, since):.3f}", "until": f"{until:.3f}", "by": by}
    with answer(url, "cost", asked) as found:
        try:
            return wire.decode(found.read(), CostDocument)
        except wire.WireError as error:
            raise UsageError(f"what answers at {url} is not a laggard collector: {error}") from None


def _write(path: str, text: str) -> None:
    """Writes the page in one step: a full disk leaves what was there. Raises UsageError."""
    new = Path(path).with_name(f".{Path(path).name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
