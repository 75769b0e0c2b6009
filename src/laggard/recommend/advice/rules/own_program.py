"""A rank with more work than its peers, or held up by its own threads: the program is to be changed, and no machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.locate.describe import culprit_name, culprit_text
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = "docs/location.md: whose fault it is"


class _Change(NamedTuple):
    key: str
    recommended: str
    risk: str
    revert: str


_CHANGES: Final = {
    "uneven_work": _Change(
        "what {} is given to do",
        "as much as the others: equal tokens a step, not equal samples",
        "Other batches are another training: the order of samples changes.",
        "the batches as they were",
    ),
    "busy_threads": _Change(
        "the threads beside the training of {}",
        "none that compute in Python: a process of their own, or fewer calls",
        "None for the training.",
        "the threads as they were",
    ),
}


def judge(situation: Situation) -> Iterator[Item]:
    """Advises on work of the program's own. The others have to do what is taken from one rank, so that the gain is not
    what the rank costs."""
    for culprit in situation.culprits:
        change = _CHANGES.get(culprit.kind)
        if change is None:
            continue
        yield Item(
            target="launcher",
            key=change.key.format(culprit_name(culprit)),
            current=None,
            recommended=change.recommended,
            reason=f"{culprit_text(culprit)}, and the others wait",
            evidence=culprit.evidence[:4],
            gain=Gain("rule"),
            risk=change.risk,
            apply=culprit.advice,
            revert=change.revert,
            source=SOURCE,
        )


RULE = Rule("own_program", judge, SOURCE)
