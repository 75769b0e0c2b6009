"""`laggard advice`: what was advised of runs, whether it was done, and what it gained, from a collector or from its
database."""

from __future__ import annotations

import argparse
import sys
import time

from laggard import wire
from laggard.collector.incidents.database import DatabaseError, read_advice
from laggard.collector.incidents.kept_advice import DEFAULT_LIMIT, MAX_LIMIT, AdviceQuery, advice_query_for
from laggard.collector_client import COLLECTOR_HELP, DEFAULT_URL, answer
from laggard.errors import UsageError
from laggard.recommend.outcome.calibration import outcomes_by_kind
from laggard.recommend.outcome.describe import document_lines
from laggard.recommend.outcome.values import AdviceDocument, AdviceHistory, RunOutcomes
from laggard.terminal.output import show
from laggard.terminal.parts import Line
from laggard.text.moments import moment_of
from laggard.text.users import by_uid


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "What became of advice for a run of which there are files: `laggard recommend FILE... --after FILE...`. Exit "
        "status: 0 done, 2 where nothing is kept, or no advice is known."
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--collector", metavar="URL", default=DEFAULT_URL, help=COLLECTOR_HELP)
    source.add_argument(
        "--database", metavar="PLACE", help="read the collector's file or database (incidents_database) instead"
    )
    parser.add_argument("--job", metavar="[USER:]NAME", help="only of this job's runs")
    parser.add_argument("--since", metavar="TIME", help="only what was advised then or later: 12h, 7d, 2026-11-23")
    parser.add_argument(
        "--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="of so many of the newest runs (default: 100)"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.advice/1")


def main(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.limit <= MAX_LIMIT:
        raise UsageError(f"--limit is {arguments.limit}: give 1 to {MAX_LIMIT}")
    since = None if arguments.since is None else moment_of(arguments.since, time.time())
    query = advice_query_for(by_uid(arguments.job))._replace(since=since, limit=arguments.limit)
    document = _of_database(arguments.database, query) if arguments.database else _ask(arguments.collector, query)
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode(document) + b"\n")
    else:
        first, *others = document_lines(document)
        show([Line(first, "name"), *map(Line, others)])
    sys.stdout.flush()
    return 0 if document.kinds else 2


def _of_database(path: str, query: AdviceQuery) -> AdviceDocument:
    try:
        runs = read_advice(path, query, RunOutcomes)
        every = read_advice(path, AdviceQuery(query.owner, limit=MAX_LIMIT), RunOutcomes)
    except DatabaseError as error:
        raise UsageError(str(error)) from None
    kinds = outcomes_by_kind(it for run in every for it in run.advised)
    return AdviceDocument(runs=runs, kinds=kinds, now=time.time(), history=AdviceHistory("file"))


def _ask(url: str, query: AdviceQuery) -> AdviceDocument:
    asked = {"limit": str(query.limit)}
    if query.job_id is not None:
        asked["job"] = query.job_id if query.owner is None else f"{query.owner}:{query.job_id}"
    if query.since is not None:
        asked["since"] = f"{max(0.0, query.since):.3f}"
    with answer(url, "advice", asked) as response:
        try:
            return wire.decode(response.read(), AdviceDocument)
        except wire.WireError as error:
            raise UsageError(f"what answers at {url} is not a laggard collector: {error}") from None
