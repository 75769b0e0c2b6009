"""`laggard locate`: which rank is slow, from a running collector or from a recording."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from laggard import wire
from laggard.address import without_login
from laggard.collector.job_words import job_text, known_jobs, other_jobs, recorded_text, short_text
from laggard.collector.jobs.job import JobKey
from laggard.collector.web.documents import JobLine
from laggard.collector_client import COLLECTOR_HELP, DEFAULT_URL, JOB_HELP, answer, by_uid
from laggard.errors import UsageError
from laggard.locate.describe import culprit_name, details, sentence
from laggard.locate.job_timings import JobTimings
from laggard.model import EXIT_CODES, Location
from laggard.recording.judged import JudgedRecording, judge_recording
from laggard.terminal.output import show
from laggard.terminal.parts import Line
from laggard.terminal.progress import Progress, size_of, size_text
from laggard.text.words import ascii_line, printable_line

if TYPE_CHECKING:
    import httpx

    from laggard.recommend.advice.values import Item

MAX_CHANGES: Final = 3


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--collector", metavar="URL", default=DEFAULT_URL, help=COLLECTOR_HELP)
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
        "--record", metavar="DIR", help="also write what the collector holds of the job there, for `--trace DIR`"
    )
    parser.add_argument(
        "--job",
        "--job-id",
        metavar="[USER:]NAME",
        help=JOB_HELP,
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write the answer as one page that loads nothing, to mail or to attach"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("stray", nargs="*", help=argparse.SUPPRESS)


def main(arguments: argparse.Namespace) -> int:
    if arguments.record and (arguments.trace or arguments.prometheus):
        raise UsageError("--record copies from a collector: leave out --trace and --prometheus")
    if arguments.stray:
        paths = printable_line(shlex.join(arguments.stray), 200)
        raise UsageError(f"unknown argument {paths}: did you mean --trace {paths}?")
    job = by_uid(arguments.job)
    location, timings = _judged(arguments, job)
    if arguments.html:
        _write_page(arguments, location, timings)
        _tell(f"the page is in {arguments.html}")
    if arguments.record:
        _record(arguments.collector, job or _key(location), arguments.record)
        _tell(f"what the collector holds of the job is in {arguments.record}")
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode(location) + b"\n")
    else:
        show(list(_lines(arguments, location, timings)))
    return EXIT_CODES[location.verdict]


def _tell(text: str) -> None:
    """Says to a person what was written; a script knows what it asked for."""
    if sys.stderr.isatty():
        print(f"laggard: {text}", file=sys.stderr)


def _lines(arguments: argparse.Namespace, location: Location, timings: JobTimings | None) -> Iterator[Line]:
    """The answer, what shows it, what to change, and which job that is."""
    live = timings is None and location.owner is not None and not arguments.prometheus
    known = known_jobs(arguments.collector) if live else {}
    chosen = "" if arguments.job else _chosen_text(location, known)
    yield Line(f"{chosen}{sentence(location)}", location.verdict.value)
    for text in details(location):
        yield Line(f"  {text}")
    if location.culprits and not arguments.prometheus:
        yield from _change_lines(arguments, location, timings)
    yield from _job_lines(arguments, location, timings, known)


def _chosen_text(location: Location, known: Mapping[JobKey, JobLine]) -> str:
    """The job's name before the answer, where a reader could take it for another's: a collector chose it among several,
    or it has ended."""
    ended = any(note.kind == "ended" for note in location.notes)
    if location.owner is None or (len(known) < 2 and not ended):
        return ""
    line = known.get(JobKey(location.owner, str(location.job_id)))
    return f"Job {short_text(location.job_id, location.owner, line)}{', ended' if ended else ''}: "


def _job_lines(
    arguments: argparse.Namespace, location: Location, timings: JobTimings | None, known: Mapping[JobKey, JobLine]
) -> Iterator[Line]:
    """The lines on which job that is, and where a collector chose it, on which others there are."""
    if timings is not None:
        text = recorded_text(location.job_id, location.owner, timings.script, timings.started_at)
        if text:
            yield Line(f"  Job {text}", "aside")
    elif location.owner is not None:
        key = JobKey(location.owner, str(location.job_id))
        yield Line(f"  Job {job_text(location.job_id, location.owner, known.get(key))}", "aside")
        if not arguments.job:
            yield from (Line(f"{'    ' if place else '  '}{text}") for place, text in enumerate(other_jobs(known, key)))


def _judged(arguments: argparse.Namespace, job: str | None) -> tuple[Location, JobTimings | None]:
    """The verdict, and where a recording is its source, what that holds."""
    if arguments.trace:
        judged = _judge_recording(arguments.trace)
        _check_job(arguments.job, judged)
        return judged
    asked = (arguments.at, arguments.bearer_token_file, arguments.basic_auth_file)
    if arguments.prometheus:
        return _from_prometheus(arguments.prometheus, job, *asked), None
    if any(asked):
        raise UsageError("--at, --bearer-token-file and --basic-auth-file go with --prometheus URL")
    return _ask(arguments.collector, job), None


def _check_job(asked: str | None, judged: JudgedRecording) -> None:
    """Raises UsageError where another job was asked for than the recording holds."""
    held, script = judged.location.job_id, judged.timings.script
    name = (asked or "").rpartition(":")[2] if asked != held else held
    if asked and held and name not in (held, script) and not held.startswith(name or ""):
        raise UsageError(f"the recording is of job {held}{f' ({script})' if script else ''}, not of {asked}")


def _judge_recording(paths: Sequence[str]) -> JudgedRecording:
    with Progress() as progress:
        size_bytes = size_of(paths)
        progress.begin_reading(f"reading {size_text(size_bytes)}", size_bytes)
        return judge_recording(paths)


def _write_page(arguments: argparse.Namespace, location: Location, timings: JobTimings | None) -> None:
    from laggard.collector.keep import page_of_collector, page_of_counters, page_of_recording, write_page

    if timings is not None:
        page = page_of_recording(JudgedRecording(location, timings), arguments.trace)
    elif arguments.prometheus:
        page = page_of_counters(location, arguments.prometheus)
    else:
        page = page_of_collector(arguments.collector, location, by_uid(arguments.job) or _key(location))
    write_page(arguments.html, page)


def _from_prometheus(
    url: str, job: str | None, at: str | None, token_file: str | None, basic_file: str | None
) -> Location:
    from laggard.collector.prometheus.client import Prometheus, authorization
    from laggard.collector.prometheus.verdict import locate_by_counters

    moment = None if at is None else _moment(at)
    prometheus = Prometheus(url, authorization(token_file, basic_file))
    try:
        return locate_by_counters(prometheus, job, moment)
    finally:
        prometheus.close()


def _moment(text: str) -> float:
    """Unix seconds. Raises UsageError."""
    try:
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        found = datetime.fromisoformat(text.removesuffix("Z"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"--at {text} is no time: write 2026-11-23T04:00 (UTC) or Unix seconds") from None


def _change_lines(arguments: argparse.Namespace, location: Location, timings: JobTimings | None) -> Iterator[Line]:
    """The advice besides looking at the culprits, which have said that: the recommendation's first changes."""
    from laggard.recommend.advice.words import change_text, gain_text

    names = set(map(culprit_name, location.culprits))
    others = [item for item in _recommended(arguments, location, timings) if item.key not in names]
    for item in others[:MAX_CHANGES]:
        yield Line(ascii_line(f"  What to change: {change_text(item)}. Gain: {gain_text(item.gain)}."))
    if not others and any(culprit.kind in ("dead", "hung") for culprit in location.culprits):
        return  # there is nothing to repair, and nothing is tuned in a job that stands still
    left = len(others) - MAX_CHANGES
    start = "How, and why" if others else "What to change, with what it gains"
    more = f", and {left} more" if left > 0 else ""
    yield Line(f"  {start}{more}:", command=_recommend_command(arguments))


def _recommended(arguments: argparse.Namespace, location: Location, timings: JobTimings | None) -> tuple[Item, ...]:
    from laggard.collector.keep import recommendation_of_collector, recommendation_of_recording

    if timings is not None:
        return recommendation_of_recording(location, timings).items
    try:
        return recommendation_of_collector(arguments.collector, by_uid(arguments.job) or _key(location)).items
    except UsageError:  # it gave the verdict, and has no recommendations, or has gone meanwhile
        return ()


def _recommend_command(arguments: argparse.Namespace) -> str:
    """The command that says more of what to do, with the sources that this one had."""
    if arguments.trace:
        words = arguments.trace
    else:
        words = ["--collector", arguments.collector, *(["--job", arguments.job] if arguments.job else [])]
    return printable_line(shlex.join(["laggard", "recommend", *words]), 300)


def _key(location: Location) -> str | None:
    return location.job_id if location.owner is None else f"{location.owner}:{location.job_id}"


def _ask(url: str, job: str | None) -> Location:
    """The collector's verdict. Raises UsageError where no collector answers at `url`."""
    try:
        return wire.decode(_get(url, "location", job), Location)
    except wire.WireError as error:
        raise UsageError(f"what answers at {without_login(url)} is not a laggard collector: {error}") from None


def _record(url: str, job: str | None, directory: str) -> None:
    """Writes DIRECTORY/job.jsonl, which `locate --trace DIRECTORY` judges as the collector does. Nothing is
    overwritten: raises UsageError where the file is there already."""
    path = Path(directory) / "job.jsonl"
    with _answer(url, "recording", job) as found:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                for part in found.iter_bytes():
                    file.write(part)
        except FileExistsError:
            raise UsageError(f"{path} is there already: give --record another directory") from None
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _get(url: str, document: str, job: str | None) -> bytes:
    with _answer(url, document, job) as found:
        return found.read()


def _answer(url: str, document: str, job: str | None) -> AbstractContextManager[httpx.Response]:
    """Asks for a document that is fresh, not up to 5 s old as of the last round. Raises UsageError."""
    return answer(url, document, {"fresh": "1", **({"job": job} if job else {})})
