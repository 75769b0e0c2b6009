"""`laggard locate`: which rank is slow, from a running collector or from a recording."""

from __future__ import annotations

import argparse
import sys

import msgspec

from laggard import wire
from laggard.collector.locate import locate
from laggard.collector.sentence import details, sentence
from laggard.collector.trace import read_trace
from laggard.errors import UsageError
from laggard.model import EXIT_CODES, Location, Note
from laggard.names import COLLECTOR_PORT


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--collector", metavar="URL", default=f"http://127.0.0.1:{COLLECTOR_PORT}", help="default: %(default)s"
    )
    source.add_argument("--trace", metavar="PATH", nargs="+", help="a recording: files or directories of them")
    parser.add_argument("--job", metavar="ID", help="which job of the collector's; default: the one that moved last")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def main(arguments: argparse.Namespace) -> int:
    location = _from_trace(arguments.trace) if arguments.trace else _ask(arguments.collector, arguments.job)
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode(location) + b"\n")
    else:
        print(sentence(location))
        for line in details(location):
            print(f"  {line}")
    return EXIT_CODES[location.verdict]


def _from_trace(paths: list[str]) -> Location:
    trace = read_trace(paths)
    location = locate(trace.evidence)
    lacks = tuple(Note("lacks", text) for text in trace.lacks)
    return msgspec.structs.replace(location, notes=location.notes + lacks)


def _ask(url: str, job: str | None) -> Location:
    import httpx

    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/v1/location", params={"job": job} if job else {}, timeout=10.0)
        answer.raise_for_status()
        return wire.decode(answer.content, Location)
    except httpx.HTTPStatusError as error:
        raise UsageError(
            f"the collector at {url} answers {error.response.status_code}{_said(error.response)}"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL):
        raise UsageError(f"no collector answers at {url}; start one, or name it with --collector") from None
    except wire.WireError as error:
        raise UsageError(f"what answers at {url} is not a laggard collector: {error}") from None


def _said(response: object) -> str:
    text = getattr(response, "text", "")[:200].strip()
    return f": {text}" if text else ""
