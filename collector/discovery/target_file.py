"""Files that list agents, in the format of Prometheus' file_sd_configs: JSON or YAML, read again when they change."""

from __future__ import annotations

import glob
import os
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from laggard.collector.discovery.source import Answer, Unanswered
from laggard.collector.scrape.targets import Target, parse_target
from laggard.errors import UsageError
from laggard.text.words import counted, printable_line

MAX_FILE_BYTES: Final = 4 << 20
MAX_FILES: Final = 256

_SCHEME: Final = "__scheme__"
_MESSAGE_CHARACTERS: Final = 160


class _Group(msgspec.Struct, frozen=True):
    """One entry of the list in such a file. Of the labels only the scheme counts here."""

    targets: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class _Read(NamedTuple):
    version: tuple[int, int, int]
    answer: Answer


class TargetFiles:
    """The files that `pattern` names: a path, in which `*`, `?` and `[...]` stand for more."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._held: dict[str, _Read] = {}

    def read(self) -> Answer:
        """The agents in all files. A file that cannot be used is named in the note, and what it said last holds; so is
        a target that cannot be read. Raises Unanswered where there is no file."""
        paths = sorted(glob.glob(self._pattern))
        if not paths:
            raise Unanswered(f"{self._pattern}: no such file")
        notes = [f"{self._pattern}: of {len(paths)} files only {MAX_FILES} are read"] if paths[MAX_FILES:] else []
        self._held = {path: self._read_if_changed(path, notes) for path in paths[:MAX_FILES]}
        answers = [held.answer for held in self._held.values()]
        notes += [answer.note for answer in answers if answer.note]
        return Answer(tuple(target for answer in answers for target in answer.targets), "; ".join(notes))

    def _read_if_changed(self, path: str, notes: list[str]) -> _Read:
        """The file's agents; those that were read last where it cannot be read now."""
        before = self._held.get(path, _Read((0, 0, 0), Answer()))
        try:
            with open(path, "rb") as file:
                stat = os.fstat(file.fileno())
                version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                return (
                    before if version == before.version else _Read(version, _parse(path, file.read(MAX_FILE_BYTES + 1)))
                )
        except OSError as error:
            notes.append(f"{path} cannot be read: {(error.strerror or str(error)).lower()}")
        except _Unusable as error:
            notes.append(f"{path} is not used: {printable_line(str(error), _MESSAGE_CHARACTERS)}")
        return before


class _Unusable(Exception):
    pass


def _parse(path: str, body: bytes) -> Answer:
    """Raises _Unusable where the file is not a list of targets."""
    if len(body) > MAX_FILE_BYTES:
        raise _Unusable(f"it is longer than {MAX_FILE_BYTES} bytes")
    try:
        groups = msgspec.convert(_tree(path, body), tuple[_Group, ...] | None) or ()
    except (ValueError, RecursionError) as error:  # msgspec's and Unicode's are ValueErrors
        raise _Unusable(f'{error}; write [{{"targets": ["HOST:PORT"]}}]') from None
    targets: list[Target] = []
    refused: list[str] = []
    for group in groups:
        scheme = group.labels.get(_SCHEME, "http")
        for text in group.targets:
            try:
                targets.append(parse_target(text if "://" in text else f"{scheme}://{text}"))
            except UsageError as error:
                refused.append(str(error))
    note = f"{path}: {counted(len(refused), 'target')} left out: {refused[0]}" if refused else ""
    return Answer(tuple(targets), printable_line(note, 2 * _MESSAGE_CHARACTERS))


def _tree(path: str, body: bytes) -> Any:
    if path.endswith(".json"):
        return msgspec.json.decode(body)
    try:
        return yaml.safe_load(body)  # not libyaml's loader: nested deeply enough, it ends the process
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ValueError(f"it is not YAML{where}: {getattr(error, 'problem', None) or 'unreadable'}") from None
