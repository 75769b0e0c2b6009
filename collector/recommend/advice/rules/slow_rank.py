"""A culprit that `laggard locate` names: a synchronous job is as slow as its slowest rank, whatever is tuned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.collector.describe import culprit_name, culprit_text
from laggard.collector.recommend.advice.rule import Rule
from laggard.collector.recommend.advice.situation import Situation
from laggard.collector.recommend.advice.values import Gain, Item

SOURCE: Final = "docs/location.md: recoverable_ratio is the share of the step that fixing the culprit saves"


def judge(situation: Situation) -> Iterator[Item]:
    for culprit in situation.culprits:
        share = culprit.recoverable_ratio
        known = share is not None and 0 < share < 1
        ratio = 1 / (1 - share) if known and share is not None else None
        yield Item(
            target="host",
            key=culprit_name(culprit),
            current=f"{culprit.slowdown_ratio:.2f} times its peers' time" if culprit.slowdown_ratio else None,
            recommended=None,
            reason=f"{culprit_text(culprit)}, and the others wait for it ({culprit.kind})",
            evidence=culprit.evidence[:4],
            gain=Gain("measured", ratio, 1.0 if ratio else None, ratio),
            risk="None, if another node takes its place.",
            apply=culprit.advice,
            revert="Put the node back.",
            source=SOURCE,
            repairs=True,
        )


RULE = Rule("slow_rank", judge, SOURCE)
