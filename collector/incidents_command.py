"""`laggard incidents`: which culprits there are and were, from a running collector or from its database."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct, structs

from laggard import wire
from laggard.collector import node_history
from laggard.collector.incidents.incident import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    REASONS,
    HistoryState,
    Incident,
    IncidentQuery,
    IncidentsDocument,
    query_for,
    with_confirmation,
)
from laggard.collector.job_words import ask_for, job_text, known_jobs, short_text
from laggard.collector.web.documents import JobLine
from laggard.kit.errors import UsageError
from laggard.kit.flags import add_collector
from laggard.kit.parts import Line
from laggard.kit.terminal import show, write_document
from laggard.kit.users import by_uid
from laggard.kit.words import capital, counted, moment_of, printable_line, utc_text
from laggard.model import EXIT_CODES, JobKey, Verdict

_MAX_PAGES = 200


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    add_collector(source)
    source.add_argument(
        "--database",
        metavar="PLACE",
        help="read the collector's file or database (incidents_database) instead, also while it runs",
    )
    parser.add_argument(
        "--job",
        metavar="[USER:]NAME",
        help="only those of this job; by its name alone, of every user's job of that name",
    )
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="only those that were open then or later: 90m, 12h, 7d, or 2026-11-23, 2026-11-23T04:00 (UTC)",
    )
    parser.add_argument(
        "--node", metavar="N", help="the history of this machine: its incidents, its findings, how often it fails"
    )
    parser.add_argument("--open", action="store_true", help="only those that are open")
    parser.add_argument(
        "--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="so many of the newest (default: 100)"
    )
    parser.add_argument(
        "--copy-to",
        metavar="PLACE",
        help="copy all that --database keeps into this file or database of PostgreSQL, in place of showing it; it may "
        "be ended and begun anew",
    )
    parser.add_argument(
        "--writer",
        metavar="NAME",
        help="with --copy-to a database of PostgreSQL: the incidents_writer of the collector that goes on with what is "
        "open (default: that of a collector of this machine)",
    )
    parser.add_argument(
        "--migrate",
        type=int,
        metavar="VERSION",
        help="bring the tables of --database to this version, that of another release, in place of showing them; no "
        "collector may write there meanwhile",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def main(arguments: argparse.Namespace) -> int:
    """0: none is open, 1: one is, 2: cannot tell, since the collector keeps no history."""
    if arguments.limit < 1:
        raise UsageError(f"--limit is {arguments.limit}: give a number above 0")
    if arguments.copy_to is not None or arguments.migrate is not None:
        return _copy(arguments)
    if arguments.writer:
        raise UsageError("--writer belongs to --copy-to")
    if arguments.node is not None:
        return _show_node(arguments)
    since = None if arguments.since is None else moment_of(arguments.since, time.time())
    query = query_for(by_uid(arguments.job))._replace(since=since, open_only=arguments.open, limit=arguments.limit)
    document = _read(arguments.database, query) if arguments.database else _ask(arguments.collector, query)
    jobs = {} if arguments.database or arguments.format == "json" else known_jobs(arguments.collector)
    return _told(arguments, document, lines(document, query, jobs), _verdict(document))


def _told(arguments: argparse.Namespace, document: Struct, lines: Iterator[str], verdict: Verdict) -> int:
    """Says it in the format that is asked for. Returns the exit status."""
    if arguments.format == "json":
        write_document(wire.encode(document))
    else:
        answer_line, *others = map(printable, lines)
        show([Line(answer_line, verdict.value), *map(Line, others)])
    return EXIT_CODES[verdict]


def _copy(arguments: argparse.Namespace) -> int:
    """0: all of it is in the other database, or of the other version, 1: all but rows that could not be read. Raises
    UsageError."""
    from laggard.collector.copying import copy, migrate  # which takes numpy, through what a collector opens

    if not arguments.database or arguments.node or arguments.job or arguments.since or arguments.open:
        option = "--copy-to copies" if arguments.migrate is None else "--migrate changes"
        raise UsageError(f"{option} all of --database FILE or URL: give that, and nothing that selects")
    if arguments.migrate is not None:
        lines, status = migrate(arguments.database, arguments.migrate), 0
    else:
        lines, status = copy(arguments.database, arguments.copy_to, arguments.writer)
    show([Line(printable(line)) for line in lines])
    return status


def _show_node(arguments: argparse.Namespace) -> int:
    """The history of one machine. Raises UsageError where it is asked for less."""
    if arguments.job or arguments.since or arguments.open:
        raise UsageError("--node shows all that is known of the machine: leave out --job, --since and --open")
    node = arguments.node
    if arguments.database:
        found = _read_node(arguments.database, node)
    else:
        found = ask_for(arguments.collector, "history", {"node": node}, node_history.NodeHistoryDocument)
    return _told(arguments, found, node_history.history_lines(found), _node_verdict(found))


def _node_verdict(found: node_history.NodeHistoryDocument) -> Verdict:
    """`fail` where something is open on it."""
    if any(it.closed_at is None for it in found.incidents) or any(
        it.closed_at is None and it.is_failure for it in found.faults
    ):
        return Verdict.FAIL
    return Verdict.OK if found.history.state in ("on", "file") else Verdict.UNKNOWN


def _read_node(path: str, node: str) -> node_history.NodeHistoryDocument:
    from laggard.collector.incidents import reads  # here: who asks a collector needs no SQLAlchemy
    from laggard.collector.incidents.schema import DatabaseError

    def of_name(name: str) -> tuple[Incident, ...]:
        return reads.read_incidents(path, IncidentQuery(node=name, limit=MAX_LIMIT)).incidents

    try:
        rows = reads.read_machine(path, node, node_history.MAX_FAULTS)
        return node_history.history_of_rows(node, rows, of_name, time.time(), HistoryState("file"))
    except DatabaseError as error:
        raise UsageError(str(error)) from None


def printable(line: str) -> str:
    """The line as a terminal may show it, with the spaces at its begin."""
    return " " * (len(line) - len(line.lstrip(" "))) + printable_line(line)


def lines(
    document: IncidentsDocument, query: IncidentQuery, jobs: Mapping[JobKey, JobLine] = MappingProxyType({})
) -> Iterator[str]:
    """The answer, what to do, then the incidents, each with what there is to know of it. `jobs`: those that the
    collector holds."""
    yield _sentence(document, query, jobs)
    if document.history.state in ("off", "failed"):
        yield f"  No history is kept: {document.history.reason}"
    for incident in document.incidents:
        yield from _described(incident, document.now, jobs.get(incident.key))
    if document.next is not None:
        yield f"There are more: ask with --limit above {len(document.incidents)}, --since or --job."


def _verdict(document: IncidentsDocument) -> Verdict:
    if any(it.closed_at is None for it in document.incidents):
        return Verdict.FAIL
    return Verdict.OK if document.history.state in ("on", "file") else Verdict.UNKNOWN


def _sentence(document: IncidentsDocument, query: IncidentQuery, jobs: Mapping[JobKey, JobLine]) -> str:
    found = [it for it in document.incidents if it.closed_at is None]
    closed = len(document.incidents) - len(found)
    more = "at least " if document.next is not None else ""
    past = f" {capital(more)}{counted(closed, 'closed one')} before." if closed else ""
    if not found:
        return f"No incident is open{_of_which(query)}.{past}"
    newest = found[0]
    job = short_text(newest.job_id, newest.owner, jobs.get(newest.key))
    first = f"{newest.what}, job {job}, since {utc_text(newest.opened_at)}"
    if len(found) == 1:
        return f"One incident is open: {first}.{past}"
    return f"{capital(more)}{len(found)} incidents are open, the newest: {first}.{past}"


def _of_which(query: IncidentQuery) -> str:
    return f" of job {query.job_id}" if query.job_id else ""


def _described(it: Incident, now: float, job: JobLine | None) -> Iterator[str]:
    lasted = node_history.lasted_text((now if it.closed_at is None else it.closed_at) - it.opened_at)
    state = "open" if it.closed_at is None else f"closed, {REASONS.get(it.closed_because or '', it.closed_because)}"
    yield f"{utc_text(it.opened_at)}, {lasted}, {state}: {it.what}; job {job_text(it.job_id, it.owner, job)}"
    if it.closed_at is None:
        yield f"    what to do: {it.culprit.advice}"
    if it.confirmation is not None:
        known = it.confirmation
        yield f"    {known.node} was measured {utc_text(known.at)}, and {known.outcome}: {known.why}"
    if it.most_recoverable_ratio:
        yield f"    cost up to {100 * it.most_recoverable_ratio:.0f} % of the step time"
    if it.lost_gpu_hours >= 0.05:
        yield f"    took {it.lost_gpu_hours:,.1f} GPU-hours"
    if it.returned:
        yield f"    {node_history.returned_text(it.returned, it.opened_at)}"
    if it.gaps:
        yield f"    was not named for a while {counted(it.gaps, 'time')}"
    for line in it.culprit.evidence:
        yield f"    {line}"
    if it.findings:
        yield f"    its node reported {', '.join(it.findings)}"


def _read(path: str, query: IncidentQuery) -> IncidentsDocument:
    from laggard.collector.incidents import reads  # here: who asks a collector needs no SQLAlchemy
    from laggard.collector.incidents.schema import DatabaseError

    try:
        rows, confirmations = reads.read_incidents(path, query), reads.read_confirmations(path)
    except DatabaseError as error:
        raise UsageError(str(error)) from None
    damaged = f"{counted(rows.damaged, 'row')} could not be read" if rows.damaged else ""
    incidents = tuple(with_confirmation(it, confirmations) for it in rows.incidents)
    return IncidentsDocument(incidents, rows.last_id, rows.opened, time.time(), HistoryState("file", damaged))


def _ask(url: str, query: IncidentQuery) -> IncidentsDocument:
    """Page after page, up to the limit. Raises UsageError where no collector answers at `url`."""
    found: list[Incident] = []
    document = None
    for _ in range(_MAX_PAGES):
        wanted = min(MAX_LIMIT, query.limit - len(found))
        document = _ask_for_page(url, query._replace(limit=wanted))
        found += document.incidents
        if document.next is None or len(found) >= query.limit:
            break
        query = query._replace(before=document.next)
    assert document is not None
    return structs.replace(document, incidents=tuple(found[: query.limit]))


def _ask_for_page(url: str, query: IncidentQuery) -> IncidentsDocument:
    asked = {"limit": str(query.limit)}
    if query.job_id is not None:
        asked["job"] = query.job_id if query.owner is None else f"{query.owner}:{query.job_id}"
    if query.since is not None:
        asked["since"] = f"{max(0.0, query.since):.3f}"
    if query.before is not None:
        asked["before"] = str(query.before)
    if query.open_only:
        asked["open"] = "1"
    return ask_for(url, "incidents", asked, IncidentsDocument)
