"""What a recording holds beside files: noted line by line while the probes run, put together when they are done."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from laggard import wire
from laggard.probes.host.kernel import FACTS_PATH, PFC_PATH, REFUSED_PATH, REPLIES_PATH

NOT_RECORDED: Final = "not recorded"
_NOTES: Final = "/laggard/.notes"


class Note(msgspec.Struct, frozen=True, array_like=True):
    """`kind`: file_system, clock, environ, time, pfc, reply; error: `key` could not be asked; refused: `key` could not
    be read; empty: a file that is truly so. `value` is JSON, or the kernel's words."""

    kind: str
    key: str
    value: str


def notes_path(folder: str, pid: int) -> str:
    return f"{folder}{_NOTES}.{pid}"


def put_together(folder: str, known: dict[str, Any]) -> None:
    """Writes the answers that are no files. `known`: facts to begin with, those of a recorded machine."""
    notes = list(_take(folder))
    facts = {**known}
    for note in notes:
        if note.kind == "file_system":
            facts["file_systems"] = {**facts.get("file_systems", {}), note.key: _value(note)}
        elif note.kind in ("clock", "environ", "time"):
            facts[note.kind] = _value(note)
        elif note.kind == "error":
            facts["errors"] = {**facts.get("errors", {}), note.key: note.value}
    if "time" in facts:  # else the recorded machine had none
        _write(folder + FACTS_PATH, facts)
    _write(folder + REFUSED_PATH, _refused(folder, notes))
    for kind, path in (("pfc", PFC_PATH), ("reply", REPLIES_PATH)):
        _write(folder + path, {note.key: _value(note) for note in notes if note.kind == kind})


def _refused(folder: str, notes: Iterable[Note]) -> dict[str, str]:
    """A file that one probe only listed and another one read was not refused."""
    refused: dict[str, str] = {}
    empty = {note.key for note in notes if note.kind == "empty"}
    for note in notes:
        verb, _, place = note.key.partition(" ")
        was_read = verb == "read" and (place in empty or _size(folder + place))
        if note.kind == "refused" and not was_read and refused.get(note.key, NOT_RECORDED) == NOT_RECORDED:
            refused[note.key] = note.value
    return refused


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _take(folder: str) -> Iterator[Note]:
    for path in sorted(glob.glob(glob.escape(folder + _NOTES) + ".*")):
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
        for line in lines:
            with contextlib.suppress(wire.WireError):  # the last line of a process that was killed
                yield wire.decode(line, Note)
        os.unlink(path)


def _value(note: Note) -> Any:
    return wire.decode(note.value.encode(), Any)


def _write(path: str, document: dict[str, Any]) -> None:
    if not document:
        return
    with open(path, "wb") as file:
        file.write(msgspec.json.format(wire.encode(document), indent=1) + b"\n")
