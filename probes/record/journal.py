"""The content of a recording beside files: a journal that probes' processes write line by line, and the documents that
are made of it when they have ended."""

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
_JOURNAL: Final = "/laggard/.notes"


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """One answer of the machine. `kind`: file_system, usage, clock, environ, time, pfc or reply, with the answer as
    JSON in `value`; error, where the call `key` failed, and refused, where `key` could not be read, with the kernel's
    message; empty, where the file `key` really is empty."""

    kind: str
    key: str
    value: str


def journal_path(folder: str, pid: int) -> str:
    """The journal of process `pid` for the recording in `folder`."""
    return f"{folder}{_JOURNAL}.{pid}"


def write_documents(folder: str, facts: dict[str, Any]) -> None:
    """Reads and removes the journals of all processes, and writes their entries as the documents of a recorded machine.
    `facts`: values to begin with, those of the recorded machine that is recorded again."""
    entries = list(_remove_journals(folder))
    facts = {**facts}
    for entry in entries:
        if entry.kind == "file_system":
            facts["file_systems"] = {**facts.get("file_systems", {}), entry.key: _value(entry)}
        elif entry.kind == "usage":
            facts["usages"] = {**facts.get("usages", {}), entry.key: _value(entry)}
        elif entry.kind in ("clock", "environ", "time"):
            facts[entry.kind] = _value(entry)
        elif entry.kind == "error":
            facts["errors"] = {**facts.get("errors", {}), entry.key: entry.value}
    if "time" in facts:  # else the recorded machine had none
        _write(folder + FACTS_PATH, facts)
    _write(folder + REFUSED_PATH, _refused(folder, entries))
    for kind, path in (("pfc", PFC_PATH), ("reply", REPLIES_PATH)):
        _write(folder + path, {entry.key: _value(entry) for entry in entries if entry.kind == kind})


def _refused(folder: str, entries: Iterable[JournalEntry]) -> dict[str, str]:
    """The refused actions and the kernel's messages. A file that one probe only listed and another one read was not
    refused."""
    refused: dict[str, str] = {}
    empty = {entry.key for entry in entries if entry.kind == "empty"}
    for entry in entries:
        verb, _, place = entry.key.partition(" ")
        was_read = verb == "read" and (place in empty or _size(folder + place))
        if entry.kind == "refused" and not was_read and refused.get(entry.key, NOT_RECORDED) == NOT_RECORDED:
            refused[entry.key] = entry.value
    return refused


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _remove_journals(folder: str) -> Iterator[JournalEntry]:
    """Yields the entries of each journal, then removes it."""
    for path in sorted(glob.glob(glob.escape(folder + _JOURNAL) + ".*")):
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
        for line in lines:
            with contextlib.suppress(wire.WireError):  # the last line of a process that was killed
                yield wire.decode(line, JournalEntry)
        os.unlink(path)


def _value(entry: JournalEntry) -> Any:
    return wire.decode(entry.value.encode(), Any)


def _write(path: str, document: dict[str, Any]) -> None:
    if not document:
        return
    with open(path, "wb") as file:
        file.write(msgspec.json.format(wire.encode(document), indent=1) + b"\n")
