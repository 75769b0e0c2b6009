"""`laggard incidents --copy-to`: what a collector keeps, from a file to PostgreSQL or back."""

from __future__ import annotations

import os

from laggard.address import without_login
from laggard.collector.incidents.copying import Copied, copy_database
from laggard.collector.incidents.engine import DatabaseError
from laggard.collector.settings import CollectorSettings, incidents_writer
from laggard.database_url import is_database_url
from laggard.errors import UsageError
from laggard.text.words import counted

_WORDS = {
    "incidents": "incident",
    "faults": "finding",
    "names": "name",
    "runs": "run",
    "digests": "digest",
    "advice": "advised run",
    "confirmations": "measurement",
}


def copy(source: str, target: str, writer: str | None) -> tuple[list[str], int]:
    """Returns what to say, and the exit status: 1 where rows could not be read. Raises UsageError."""
    if _same(source, target):
        raise UsageError(f"{_shown(source)} would be copied onto itself: name another place")
    try:
        copied = copy_database(source, target, writer or incidents_writer(CollectorSettings(), os.environ))
    except DatabaseError as error:
        raise UsageError(str(error)) from None
    lines = [f"{_shown(source)} is in {_shown(target)} now.", *_figures(copied)]
    if damaged := copied["damaged"]:
        lines.append(f"  {counted(damaged, 'row')} could not be read, and stayed behind")
    return lines, 1 if damaged else 0


def _shown(place: str) -> str:
    return without_login(place) if is_database_url(place) else place


def _figures(copied: Copied) -> list[str]:
    return [f"  {counted(copied[table], word)}, {copied[f'{table} new']} new" for table, word in _WORDS.items()]


def _same(one: str, other: str) -> bool:
    if is_database_url(one) or is_database_url(other):
        return one == other
    return os.path.realpath(one) == os.path.realpath(other)
