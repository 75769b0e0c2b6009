"""`laggard findings list|explain CODE`: what the codes of findings mean. The pages are those of docs/findings."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence

import msgspec

import laggard
from laggard import wire
from laggard.catalogue.findings import FINDINGS, FindingKind
from laggard.errors import UsageError

FINDINGS_SCHEMA = "laggard.findings/1"


class FindingRow(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    severity: str
    summary: str
    doc: str
    later: str = ""
    """What will raise it, of a code that nothing raises yet."""
    page: str = ""
    """The whole page, where it was asked for."""


class FindingsDocument(msgspec.Struct, frozen=True):
    findings: tuple[FindingRow, ...]
    schema: str = FINDINGS_SCHEMA


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "explain"), help="list: all codes; explain: the page of each CODE")
    parser.add_argument("codes", nargs="*", metavar="CODE", help="as DISK_FULL")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.findings/1")


def main(arguments: argparse.Namespace) -> int:
    explain = arguments.action == "explain"
    if explain and not arguments.codes:
        raise UsageError("say which code to explain; `laggard findings list` names them")
    kinds = [_find(code) for code in arguments.codes] if arguments.codes else list(FINDINGS)
    rows = tuple(_row(kind, explain) for kind in kinds)
    if arguments.format == "json":
        sys.stdout.write(wire.encode(FindingsDocument(rows)).decode() + "\n")
    else:
        sys.stdout.write("\n".join(row.page for row in rows) if explain else _table(rows))
    sys.stdout.flush()
    return 0


def page(code: str) -> str:
    """The text of the code's page, which is shipped with the package. Raises UsageError where it is not there."""
    path = os.path.join(os.path.dirname(os.path.abspath(laggard.__file__)), "findings", f"{code}.md")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"the page of {code} is not installed: {path}: {error.strerror}") from None


def _find(code: str) -> FindingKind:
    wanted = code.upper().replace("-", "_")
    names = [kind.code for kind in FINDINGS]
    if wanted in names:
        return FINDINGS[names.index(wanted)]
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"no finding has the code {code!r}{hint} `laggard findings list` names them all")


def _row(kind: FindingKind, explain: bool) -> FindingRow:
    return FindingRow(
        kind.code, kind.severity.value, kind.summary, kind.doc, kind.later, page(kind.code) if explain else ""
    )


def _table(rows: Sequence[FindingRow]) -> str:
    width = max(len(row.code) for row in rows)
    lines = [f"{len(rows)} codes; `laggard findings explain CODE` shows a code's page."]
    for row in rows:
        later = f" (not raised yet: {row.later})" if row.later else ""
        lines.append(f"{row.code:<{width}}  {row.severity:<8}  {row.summary}{later}")
    return "\n".join(lines) + "\n"
