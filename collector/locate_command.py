"""`laggard locate`: which rank is slow, from a running collector or from a recording."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from laggard import wire
from laggard.collector.describe import details, sentence
from laggard.collector.locate.verdict import locate
from laggard.collector.recording.reader import read_recording
from laggard.constants import COLLECTOR_PORT
from laggard.errors import UsageError
from laggard.model import EXIT_CODES, Location, Note


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--collector", metavar="URL", default=f"http://127.0.0.1:{COLLECTOR_PORT}", help="default: %(default)s"
    )
    source.add_argument("--trace", metavar="PATH", nargs="+", help="a recording: files or directories of them")
    parser.add_argument(
        "--record", metavar="DIR", help="also write what the collector holds of the job there, for `--trace DIR`"
    )
    parser.add_argument(
        "--job", metavar="ID", help="the id of the collector's job; default: the job that progressed last"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def main(arguments: argparse.Namespace) -> int:
    if arguments.trace and arguments.record:
        raise UsageError("--record copies from a collector: leave out --trace, which reads a recording")
    location = _from_recording(arguments.trace) if arguments.trace else _ask(arguments.collector, arguments.job)
    if arguments.record:
        _record(arguments.collector, location.job_id if arguments.job is None else arguments.job, arguments.record)
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode(location) + b"\n")
    else:
        print(sentence(location))
        for line in details(location):
            print(f"  {line}")
    return EXIT_CODES[location.verdict]


def _from_recording(paths: list[str]) -> Location:
    recording = read_recording(paths)
    location = locate(recording.timings)
    gaps = tuple(Note("lacks", text) for text in recording.gaps)
    return msgspec.structs.replace(location, notes=location.notes + gaps)


def _ask(url: str, job: str | None) -> Location:
    """The collector's verdict. Raises UsageError where no collector answers at `url`."""
    try:
        return wire.decode(_get(url, "location", job), Location)
    except wire.WireError as error:
        raise UsageError(f"what answers at {url} is not a laggard collector: {error}") from None


def _record(url: str, job: str | None, directory: str) -> None:
    """Writes DIRECTORY/job.jsonl, which `locate --trace DIRECTORY` judges as the collector does. Nothing is
    overwritten: raises UsageError where the file is there already."""
    lines = _get(url, "recording", job)
    path = Path(directory) / "job.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            file.write(lines)
    except FileExistsError:
        raise UsageError(f"{path} is there already: give --record another directory") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _get(url: str, document: str, job: str | None) -> bytes:
    """Asks for a document that is fresh, not up to 5 s old as of the last round. Raises UsageError."""
    import httpx

    try:
        query = {"fresh": "1", **({"job": job} if job else {})}
        answer = httpx.get(f"{url.rstrip('/')}/api/v1/{document}", params=query, timeout=10.0)
        answer.raise_for_status()
        return answer.content
    except httpx.HTTPStatusError as error:
        raise UsageError(
            f"the collector at {url} answers {error.response.status_code}{_error_text(error.response)}"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL):
        raise UsageError(f"no collector answers at {url}; start one, or name it with --collector") from None


def _error_text(response: object) -> str:
    text = getattr(response, "text", "")[:200].strip()
    return f": {text}" if text else ""
