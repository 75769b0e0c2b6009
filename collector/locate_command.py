"""`laggard locate`: which rank is slow, from a running collector or from a recording."""

from __future__ import annotations

import argparse
import contextlib
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from laggard import wire
from laggard.collector.describe import details, sentence
from laggard.collector.locate.slow.last_arrivals import locate_arrivals
from laggard.collector.locate.verdict import locate
from laggard.collector.recording.reader import read_recording
from laggard.constants import COLLECTOR_PORT
from laggard.errors import UsageError
from laggard.model import EXIT_CODES, Location, Note
from laggard.text.words import printable_line

if TYPE_CHECKING:
    import httpx


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--collector", metavar="URL", default=f"http://127.0.0.1:{COLLECTOR_PORT}", help="default: %(default)s"
    )
    source.add_argument(
        "--trace",
        metavar="PATH",
        nargs="+",
        help="files or directories: a laggard recording, or PyTorch Flight Recorder dumps",
    )
    parser.add_argument(
        "--record", metavar="DIR", help="also write what the collector holds of the job there, for `--trace DIR`"
    )
    parser.add_argument(
        "--job",
        metavar="[USER:]NAME",
        help="the name of the collector's job, with its user's name or uid where several have one of that name; "
        "default: the job that progressed last",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def main(arguments: argparse.Namespace) -> int:
    if arguments.trace and arguments.record:
        raise UsageError("--record copies from a collector: leave out --trace, which reads a recording")
    job = _by_uid(arguments.job)
    location = _from_recording(arguments.trace) if arguments.trace else _ask(arguments.collector, job)
    if arguments.record:
        _record(arguments.collector, job or _key(location), arguments.record)
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode(location) + b"\n")
    else:
        print(sentence(location))
        for line in details(location):
            print(f"  {line}")
        if location.owner is not None:
            print(f"  {printable_line(f'Job {location.job_id} of {_user(location.owner)}')}")
    return EXIT_CODES[location.verdict]


def _from_recording(paths: list[str]) -> Location:
    recording = read_recording(paths)
    if recording.arrivals is not None:
        return locate_arrivals(recording.arrivals, recording.gaps)
    location = locate(recording.timings)
    gaps = tuple(Note("lacks", text) for text in recording.gaps)
    return msgspec.structs.replace(location, notes=location.notes + gaps, owner=recording.owner)


def _by_uid(job: str | None) -> str | None:
    """The job's name with the uid in place of a user's name before it, as the collector knows it."""
    user, separator, name = (job or "").partition(":")
    try:
        return f"{pwd.getpwnam(user).pw_uid}:{name}" if separator else job
    except (KeyError, ValueError):  # a uid, or no user of this machine: part of the job's own name
        return job


def _key(location: Location) -> str | None:
    return location.job_id if location.owner is None else f"{location.owner}:{location.job_id}"


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except (KeyError, OverflowError):  # not a user of this machine
        return f"user {uid}"


def _ask(url: str, job: str | None) -> Location:
    """The collector's verdict. Raises UsageError where no collector answers at `url`."""
    try:
        return wire.decode(_get(url, "location", job), Location)
    except wire.WireError as error:
        raise UsageError(f"what answers at {url} is not a laggard collector: {error}") from None


def _record(url: str, job: str | None, directory: str) -> None:
    """Writes DIRECTORY/job.jsonl, which `locate --trace DIRECTORY` judges as the collector does. Nothing is
    overwritten: raises UsageError where the file is there already."""
    path = Path(directory) / "job.jsonl"
    with _answer(url, "recording", job) as answer:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                for part in answer.iter_bytes():
                    file.write(part)
        except FileExistsError:
            raise UsageError(f"{path} is there already: give --record another directory") from None
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _get(url: str, document: str, job: str | None) -> bytes:
    with _answer(url, document, job) as answer:
        return answer.read()


@contextlib.contextmanager
def _answer(url: str, document: str, job: str | None) -> Iterator[httpx.Response]:
    """Asks for a document that is fresh, not up to 5 s old as of the last round. Raises UsageError."""
    import httpx

    query = {"fresh": "1", **({"job": job} if job else {})}
    try:
        with httpx.stream("GET", f"{url.rstrip('/')}/api/v1/{document}", params=query, timeout=10.0) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                raise UsageError(_refusal_text(url, answer))
            yield answer
    except (httpx.HTTPError, httpx.InvalidURL):
        raise UsageError(f"no collector answers at {url}; start one, or name it with --collector") from None


def _refusal_text(url: str, answer: httpx.Response) -> str:
    text = printable_line(answer.text, 1000)
    if answer.status_code == 409:  # a job's name that several users have: the text has the choices
        return text
    return f"the collector at {url} answers {answer.status_code}" + (f": {text}" if text else "")
