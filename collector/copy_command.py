"""`laggard incidents --copy-to`: what a collector keeps, from a file to PostgreSQL or back."""

from __future__ import annotations

import os

from laggard.acknowledge.kept_file import KeptFileError, change_kept, read_kept
from laggard.address import without_login
from laggard.collector.incidents.acknowledgement_rows import Known, change_shared, read_shared
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


def copy(source: str, target: str, acknowledged: str | None, writer: str | None) -> tuple[list[str], int]:
    """Returns what to say, and the exit status: 1 where rows could not be read. Raises UsageError."""
    if acknowledged and is_database_url(source) == is_database_url(target):
        raise UsageError("--acknowledged is the file of a collector without PostgreSQL: one of the two must be a file")
    if _same(source, target):
        raise UsageError(f"{_shown(source)} would be copied onto itself: name another place")
    try:
        copied = copy_database(source, target, writer or incidents_writer(CollectorSettings(), os.environ))
        known = _copy_acknowledged(source, target, acknowledged) if acknowledged else None
    except DatabaseError as error:
        raise UsageError(str(error)) from None
    except KeptFileError as error:
        raise UsageError(str(error)) from None
    lines = [f"{_shown(source)} is in {_shown(target)} now.", *_figures(copied)]
    if known is not None:
        lines.append(f"  {counted(known, 'acknowledgement')}")
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


def _copy_acknowledged(source: str, target: str, path: str) -> int:
    """Returns how many hold now where they were copied to. Raises DatabaseError, KeptFileError and UsageError."""
    more = read_shared(source) if is_database_url(source) else read_kept(path)

    def with_more(known: Known) -> Known:
        ids = {it.id for it in known}
        return (*known, *(it for it in more if it.id not in ids))

    return len(change_shared(target, with_more) if is_database_url(target) else change_kept(path, with_more))
