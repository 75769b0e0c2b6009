"""`laggard locate`: which rank is slow, from a running collector or from a recording."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from laggard import wire
from laggard.collector.ask import DEFAULT_URL, JOB_HELP, answer, by_uid, user_text
from laggard.collector.describe import details, sentence
from laggard.collector.locate.slow.last_arrivals import locate_arrivals
from laggard.collector.locate.verdict import locate
from laggard.collector.recording.reader import read_recording
from laggard.errors import UsageError
from laggard.model import EXIT_CODES, Location, Note
from laggard.text.words import printable_line

if TYPE_CHECKING:
    import httpx


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--collector", metavar="URL", default=DEFAULT_URL, help="default: %(default)s")
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
        help=JOB_HELP,
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def main(arguments: argparse.Namespace) -> int:
    if arguments.trace and arguments.record:
        raise UsageError("--record copies from a collector: leave out --trace, which reads a recording")
    job = by_uid(arguments.job)
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
            print(f"  {printable_line(f'Job {location.job_id} of {user_text(location.owner)}')}")
    return EXIT_CODES[location.verdict]


def _from_recording(paths: list[str]) -> Location:
    recording = read_recording(paths)
    if recording.arrivals is not None:
        return locate_arrivals(recording.arrivals, recording.gaps)
    location = locate(recording.timings)
    gaps = tuple(Note("lacks", text) for text in recording.gaps)
    return msgspec.structs.replace(location, notes=location.notes + gaps, owner=recording.owner)


def _key(location: Location) -> str | None:
    return location.job_id if location.owner is None else f"{location.owner}:{location.job_id}"


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
