"""The place of a node in its site, as three labels: by them alerts find the team that has to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

MAX_LABEL_CHARACTERS: Final = 128


class NodeLabels(NamedTuple):
    """Empty: not known. Three and no more, since each is a label of a series of every node."""

    partition: str = ""
    rack: str = ""
    team: str = ""

    def over(self, other: NodeLabels) -> NodeLabels:
        """These labels, and those of `other` where these have none."""
        return NodeLabels(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))


def labels_in(labels: Mapping[str, str]) -> NodeLabels:
    """The three among the labels of a target. One that is too long or cannot be printed counts as none."""
    return NodeLabels(*(_usable(labels.get(name, "")) for name in NodeLabels._fields))


def partitions_label(names: Iterable[str]) -> str:
    """The partitions of a node as one label: in order, with commas between them; of many those that fit."""
    text = ""
    for name in sorted(set(names)):
        longer = f"{text},{name}" if text else name
        if name and name.isprintable() and len(longer) <= MAX_LABEL_CHARACTERS:
            text = longer
    return text


def _usable(text: str) -> str:
    return text if len(text) <= MAX_LABEL_CHARACTERS and text.isprintable() else ""
