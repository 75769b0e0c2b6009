"""`laggard findings list|explain CODE`: lists the finding codes and shows their pages, docs/findings/CODE.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from laggard import wire
from laggard.catalogue.findings import FindingType, all_types, find_type, read_page
from laggard.kit.errors import UsageError
from laggard.kit.parts import Line, Part, Table, page_lines, plain_text
from laggard.kit.terminal import show_or_write

FINDINGS_SCHEMA = "laggard.findings/1"


class FindingRow(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    severity: str
    summary: str
    doc: str
    action: str = ""
    """What ends it: REBOOT, RESET, REPLACE, OPERATOR or USER."""
    page: str = ""
    """The whole page, with `explain`."""


class FindingsDocument(msgspec.Struct, frozen=True):
    findings: tuple[FindingRow, ...]
    schema: str = FINDINGS_SCHEMA


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "explain"), help="list: all codes; explain: the page of each CODE")
    parser.add_argument("codes", nargs="*", metavar="CODE", help="such as DISK_FULL")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one document")


def main(arguments: argparse.Namespace) -> int:
    explain = arguments.action == "explain"
    if explain and not arguments.codes:
        raise UsageError("name a code to explain; `laggard findings list` lists them")
    chosen = map(find_type, arguments.codes) if arguments.codes else all_types()
    rows = tuple(_row(each, explain) for each in chosen)
    if arguments.format == "json":
        sys.stdout.write(wire.encode(FindingsDocument(rows)).decode() + "\n")
    else:
        show_or_write(
            lambda: [part for row in rows for part in page_lines(row.page)] if explain else _table(rows),
            lambda: "\n".join(row.page for row in rows) if explain else plain_text(_table(rows)),
        )
    sys.stdout.flush()
    return 0


def _row(it: FindingType, explain: bool) -> FindingRow:
    return FindingRow(it.code, it.severity.value, it.summary, it.doc, it.action, read_page(it.code) if explain else "")


def _table(rows: Sequence[FindingRow]) -> list[Part]:
    cells = tuple((row.code, row.severity, row.summary) for row in rows)
    return [
        Line(f"{len(rows)} codes; `laggard findings explain CODE` shows a code's page."),
        Table(("code", "severity", "summary"), cells),
    ]
