"""Files that list agents, in the format of Prometheus' file_sd_configs: JSON or YAML, read again when they change."""

from __future__ import annotations

import glob
import os
from typing import Final, NamedTuple

import msgspec

from laggard.collector.discovery.source import Answer, Unanswered
from laggard.collector.discovery.tree import MAX_FILE_BYTES, Unusable, tree_of
from laggard.collector.node_labels import NodeLabels, labels_in
from laggard.collector.scrape.targets import Target, parse_target
from laggard.errors import UsageError
from laggard.text.words import counted, printable_line

MAX_FILES: Final = 256

_SCHEME: Final = "__scheme__"
_MESSAGE_CHARACTERS: Final = 160


class _Group(msgspec.Struct, frozen=True):
    """One entry of the list in such a file. Of the labels the scheme counts here, and
    partition, rack and team of its nodes."""

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
        targets = tuple(target for answer in answers for target in answer.targets)
        labels = {target: given for answer in answers for target, given in answer.labels.items()}
        return Answer(targets, "; ".join(notes), labels)

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
        except Unusable as error:
            notes.append(f"{path} is not used: {printable_line(str(error), _MESSAGE_CHARACTERS)}")
        return before


def _parse(path: str, body: bytes) -> Answer:
    """Raises Unusable where the file is not a list of targets."""
    try:
        groups = msgspec.convert(tree_of(path, body), tuple[_Group, ...] | None) or ()
    except (ValueError, RecursionError) as error:  # msgspec's and Unicode's are ValueErrors
        raise Unusable(f'{error}; write [{{"targets": ["HOST:PORT"]}}]') from None
    targets: list[Target] = []
    refused: list[str] = []
    labels: dict[Target, NodeLabels] = {}
    for group in groups:
        scheme = group.labels.get(_SCHEME, "http")
        given = labels_in(group.labels)
        for text in group.targets:
            try:
                target = parse_target(text if "://" in text else f"{scheme}://{text}")
                targets.append(target)
                if any(given):
                    labels[target] = given
            except UsageError as error:
                refused.append(str(error))
    note = f"{path}: {counted(len(refused), 'target')} left out: {refused[0]}" if refused else ""
    return Answer(tuple(targets), printable_line(note, 2 * _MESSAGE_CHARACTERS), labels)
