"""A rank with more work than its peers: no machine is at fault, the batches are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.collector.describe import culprit_name, culprit_text
from laggard.collector.recommend.advice.rule import Rule
from laggard.collector.recommend.advice.situation import Situation
from laggard.collector.recommend.advice.values import Gain, Item

SOURCE: Final = "docs/location.md: the elements of the model's inputs, or an update that is as fast as the peers'"


def judge(situation: Situation) -> Iterator[Item]:
    for culprit in situation.culprits:
        if culprit.kind != "uneven_work":
            continue
        yield Item(
            target="launcher",
            key=f"what {culprit_name(culprit)} is given to do",
            current=None,
            recommended="as much as the others: equal tokens a step, not equal samples",
            reason=f"{culprit_text(culprit)}, and the others wait",
            evidence=culprit.evidence[:4],
            gain=Gain("rule"),  # what is taken from one rank the others have to do
            risk="Other batches are another training: the order of samples changes.",
            apply=culprit.advice,
            revert="the batches as they were",
            source=SOURCE,
        )


RULE = Rule("uneven_work", judge, SOURCE)
