"""`laggard locate`: which rank is slow, from a running collector, from a recording or from Prometheus."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from laggard import wire
from laggard.kit.errors import UsageError
from laggard.kit.flags import JOB_HELP, add_collector
from laggard.kit.parts import Line
from laggard.kit.terminal import show, write_document
from laggard.kit.words import ascii_line, printable_line
from laggard.locate.describe import culprit_name, details, sentence
from laggard.model import EXIT_CODES, Location

if TYPE_CHECKING:
    from laggard.collector.web.page_html import KeptPage
    from laggard.recommend.advice.values import Item


class Source(Protocol):
    """A verdict, and what else its place tells of the job."""

    @property
    def location(self) -> Location: ...

    @property
    def recommend_words(self) -> Sequence[str] | None:
        """The words after `laggard recommend` that ask the same place what to change; None: it can't be asked."""

    def name_before(self) -> str:
        """The job's name, to be put before the answer where a reader could take it for another job's; else empty."""

    def changes(self) -> Sequence[Item]:
        """The items of the recommendation, the first to be done first."""

    def job_lines(self) -> Iterator[Line]:
        """Lines that say which job that is, and which others there are."""

    def page(self) -> KeptPage:
        """The answer as one page that loads nothing. Raises UsageError."""


MAX_CHANGES = 3

_WITH_PROMETHEUS = ("at", "bearer_token_file", "basic_auth_file", "headers_file", "cluster")


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    add_collector(source)
    source.add_argument(
        "--trace",
        metavar="PATH",
        nargs="+",
        help="files or directories: a laggard recording, PyTorch Flight Recorder dumps, PyTorch profiler traces or NCCL"
        " Inspector's logs",
    )
    source.add_argument(
        "--prometheus",
        metavar="URL",
        help="a Prometheus that scrapes the agents, or Thanos, Mimir: coarser, for any number of ranks",
    )
    parser.add_argument(
        "--at",
        metavar="TIME",
        help="with --prometheus: judge that moment, as 2026-11-23T04:00 (UTC) or Unix seconds (default: now)",
    )
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument("--bearer-token-file", metavar="FILE", help="with --prometheus: the token to log in with")
    secret.add_argument("--basic-auth-file", metavar="FILE", help="with --prometheus: a file with USER:PASSWORD")
    parser.add_argument(
        "--headers-file",
        metavar="FILE",
        help="with --prometheus: a file with lines `NAME: VALUE` that are sent, as X-Scope-OrgID to Mimir",
    )
    parser.add_argument(
        "--cluster", metavar="NAME", help="with --prometheus: only jobs whose series have this label `cluster`"
    )
    parser.add_argument(
        "--record", metavar="DIR", help="also write what the collector holds of the job there, for `--trace DIR`"
    )
    parser.add_argument("--job", metavar="[USER:]NAME", help=JOB_HELP)
    parser.add_argument(
        "--against",
        metavar="RUN",
        help="say instead what of a step takes longer than in RUN, an earlier run of the same program: a recording"
        " (file or directory), or from a collector `last`, the last healthy run, `first`, this job's own first hour, or"
        " `incident:ID`",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write the answer as one page that loads nothing, to mail or to attach"
    )
    parser.add_argument(
        "--perfetto", metavar="FILE", help="with --trace: also write the recording as a trace for ui.perfetto.dev"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("stray", nargs="*", help=argparse.SUPPRESS)


def main(arguments: argparse.Namespace) -> int:
    _check_flags(arguments)
    if arguments.against is not None:
        return _main_against(arguments)
    source = _source(arguments)
    if arguments.html:
        from laggard.collector.locate_command.page import write_page

        write_page(arguments.html, source.page())
        _tell(f"the page is in {arguments.html}")
    if arguments.format == "json":
        write_document(wire.encode(source.location))
    else:
        show(list(_lines(source)))
    return EXIT_CODES[source.location.verdict]


def _main_against(arguments: argparse.Namespace) -> int:
    from laggard.collector.locate_command.against import compared
    from laggard.locate.against import describe

    comparison = compared(arguments.collector, arguments.trace, arguments.job, arguments.against)
    if arguments.format == "json":
        write_document(wire.encode(comparison))
    else:
        answer = Line(describe.sentence(comparison), comparison.verdict.value)
        show([answer, *(Line(f"  {text}") for text in describe.details(comparison))])
    return EXIT_CODES[comparison.verdict]


def _check_flags(arguments: argparse.Namespace) -> None:
    """Raises UsageError for flags that do not go together."""
    if arguments.record and (arguments.trace or arguments.prometheus):
        raise UsageError("--record copies from a collector: leave out --trace and --prometheus")
    if arguments.against is not None and (arguments.prometheus or arguments.record or arguments.html):
        raise UsageError(
            "--against compares recordings, or what a collector holds: leave out --prometheus, --record, --html"
        )
    if arguments.perfetto and (not arguments.trace or arguments.against is not None):
        raise UsageError("--perfetto writes a recording: name one with --trace, and leave out --against")
    if arguments.stray:
        paths = printable_line(shlex.join(arguments.stray), 200)
        raise UsageError(f"unknown argument {paths}: did you mean --trace {paths}?")


def _source(arguments: argparse.Namespace) -> Source:
    """The place that was asked for, with its verdict; only what that needs is imported. Raises UsageError."""
    if arguments.trace:
        from laggard.collector.locate_command import recording

        recorded = recording.judge(arguments.trace, arguments.job)
        if arguments.perfetto:
            told, cut = recorded.write_perfetto(arguments.perfetto)
            (_warn if cut else _tell)(told)
        return recorded
    asked = {name: getattr(arguments, name) for name in _WITH_PROMETHEUS}
    if arguments.prometheus:
        from laggard.collector.locate_command import prometheus

        return prometheus.ask(arguments.prometheus, arguments.job, prometheus.Asked(**asked))
    if any(asked.values()):
        raise UsageError(
            "--at, --cluster, --bearer-token-file, --basic-auth-file and --headers-file go with --prometheus URL"
        )
    from laggard.collector.locate_command import collector

    source = collector.ask(arguments.collector, arguments.job)
    if arguments.record:
        source.record(arguments.record)
        _tell(f"what the collector holds of the job is in {arguments.record}")
    return source


def _tell(text: str) -> None:
    """Says to a person what was written; a script knows what it asked for."""
    if sys.stderr.isatty():
        _warn(text)


def _warn(text: str) -> None:
    print(f"laggard: {text}", file=sys.stderr)


def _lines(source: Source) -> Iterator[Line]:
    """The answer, what shows it, what to change, and which job that is."""
    location = source.location
    yield Line(f"{source.name_before()}{sentence(location)}", location.verdict.value)
    for text in details(location):
        yield Line(f"  {text}")
    if location.culprits:
        yield from _change_lines(source, location)
    yield from source.job_lines()


def _change_lines(source: Source, location: Location) -> Iterator[Line]:
    """What to do besides looking at the culprits, which have said that: the recommendation's first changes."""
    from laggard.recommend.advice.values import change_text, gain_text

    if source.recommend_words is None:
        return
    names = set(map(culprit_name, location.culprits))
    others = [item for item in source.changes() if item.key not in names]
    for item in others[:MAX_CHANGES]:
        yield Line(ascii_line(f"  What to change: {change_text(item)}. Gain: {gain_text(item.gain)}."))
    if not others and any(culprit.kind in ("dead", "hung") for culprit in location.culprits):
        return  # there is nothing to repair, and nothing is tuned in a job that stands still
    left = len(others) - MAX_CHANGES
    start = "How, and why" if others else "What to change, with what it gains"
    more = f", and {left} more" if left > 0 else ""
    command = printable_line(shlex.join(["laggard", "recommend", *source.recommend_words]), 300)
    yield Line(f"  {start}{more}:", command=command)
