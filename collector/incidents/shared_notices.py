"""Notices of several collectors: of one event one notice is kept, and one collector sends it.

Whoever keeps a notice claims it, for as long as it says now and then that it is alive. What a collector has left behind
is claimed by another, which passes over those that somebody is just claiming.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.engine import Engine
from laggard.collector.incidents.notice import CLOSED, OPENED, Notice, NoticeChanges, Told, gist
from laggard.collector.incidents.shared_rows import SharedIds
from laggard.wire import WireError, decode, encode

CLAIM_SECONDS: Final = 300
"""The time for which a notice is its collector's, who says ten times meanwhile that it is alive."""

_OVER: Final = ""
"""The gist of what was told of an incident that is closed, once that was told."""

_UNTIL: Final = f"now() + interval '{CLAIM_SECONDS} seconds'"


def write(engine: Engine, changes: NoticeChanges, ids: SharedIds, writer: str) -> tuple[Notice, ...]:
    """Writes, within the transaction that has stored the incidents. Returns the notices that are this collector's to
    send: nobody has told the same before."""
    notices = [ids.notice(it) for it in changes.made]
    said = {ids.incidents.row(number) or number: it for number, it in changes.told.items()}
    told = told_of(engine, {*said, *(it.incident.id for it in notices)})
    still = _open(engine, {it.incident.id for it in notices})
    begun = {it.incident.id for it in notices if it.event == OPENED}
    # What was told at once, while the database was away, and has arrived since.
    now_told = {key: it for key, it in said.items() if it is not None and key not in told and key not in begun}
    told |= now_told
    taken = []
    for notice in notices:
        number = notice.incident.id
        if _is_news(notice, told.get(number), number in still):
            now = Told(_OVER if notice.event == CLOSED else gist(notice.incident.culprit), notice.at)
            told[number] = now_told[number] = now
            taken.append(notice)
    put = "INSERT INTO told VALUES (?, ?) ON CONFLICT (incident) DO UPDATE SET document = excluded.document"
    engine.many(put, [(number, encode(it)) for number, it in now_told.items()])
    done = set(changes.done)
    text = (
        f"INSERT INTO notices (id, made_at, document, claimed_by, claimed_until) VALUES (?, ?, ?, ?, {_UNTIL})"
        " ON CONFLICT (id) DO NOTHING"
    )
    engine.many(text, [(it.id, it.at, encode(it), writer) for it in taken if it.id not in done])
    engine.many("DELETE FROM notices WHERE id = ?", [(it,) for it in changes.done])
    return tuple(it for it in taken if it.id not in done)


def _is_news(notice: Notice, before: Told | None, is_open: bool) -> bool:
    if before is not None and before.gist == _OVER:
        return False
    if notice.event == CLOSED:
        return not is_open
    if before is None:
        return True
    return notice.event != OPENED and before.gist != gist(notice.incident.culprit)


def claim(engine: Engine, writer: str, limit: int) -> tuple[Notice, ...]:
    """Says that this collector's claims go on, and takes what another has left behind, the oldest first. Returns the
    notices that it took."""
    engine.run(f"UPDATE notices SET claimed_until = {_UNTIL} WHERE claimed_by = ?", (writer,))
    left = (
        "SELECT id FROM notices WHERE claimed_by != ? AND claimed_until < now() ORDER BY number LIMIT ?"
        " FOR UPDATE SKIP LOCKED"
    )
    text = (
        f"UPDATE notices SET claimed_by = ?, claimed_until = {_UNTIL} WHERE id IN ({left}) RETURNING number, document"
    )
    rows = sorted(engine.run(text, (writer, writer, limit)))
    return documents([(document,) for _, document in rows], Notice)


def read_own(engine: Engine, writer: str, limit: int) -> tuple[Notice, ...]:
    """The newest that this collector has claimed, the oldest of these first."""
    text = "SELECT document FROM notices WHERE claimed_by = ? ORDER BY number DESC LIMIT ?"
    return documents(engine.run(text, (writer, limit))[::-1], Notice)


def read_told(engine: Engine) -> dict[int, Told]:
    """Returns what was told, by incident, of those that go on; of those that were dropped it is forgotten."""
    engine.run("DELETE FROM told WHERE incident NOT IN (SELECT id FROM incidents)")
    found = engine.run("SELECT incident, document FROM told ORDER BY incident DESC LIMIT 65536")
    return {number: it for number, it in _decoded(found).items() if it.gist != _OVER}


def told_of(engine: Engine, numbers: Iterable[int]) -> dict[int, Told]:
    """Returns what was told of these incidents, also of those that are over."""
    found: dict[int, Told] = {}
    for number in numbers:
        found |= _decoded(engine.run("SELECT incident, document FROM told WHERE incident = ?", (number,)))
    return found


def _decoded(rows: Iterable[tuple[int, bytes]]) -> dict[int, Told]:
    found = {}
    for number, document in rows:
        try:
            found[number] = decode(document, Told)
        except WireError:  # one row's damage costs that row
            continue
    return found


def _open(engine: Engine, numbers: Iterable[int]) -> set[int]:
    text = "SELECT id FROM incidents WHERE id = ? AND closed_at IS NULL"
    return {number for number in numbers if engine.run(text, (number,))}
