"""Ranks that pause now and then: Python's garbage collection stops each rank at a step of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.locate.describe import culprit_name
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = (
    "torchtnt's GarbageCollector: synchronous training collects on all ranks at the same step; Python's documentation "
    "of gc.freeze"
)
_HIGHEST_SHARE: Final = 0.9
_MAX_SHOWN: Final = 4


def judge(situation: Situation) -> Iterator[Item]:
    """One change for all ranks. Pauses in a data loader or of a whole machine have other causes."""
    paused = [each for each in situation.culprits if each.kind == "slow_compute" and each.persistence == "intermittent"]
    if not paused:
        return
    shares = [each.recoverable_ratio for each in paused if each.recoverable_ratio]
    lost = min(sum(shares), _HIGHEST_SHARE)
    names = ", ".join(culprit_name(each) for each in paused[:_MAX_SHOWN])
    more = f" and {len(paused) - _MAX_SHOWN} more" if len(paused) > _MAX_SHOWN else ""
    yield Item(
        target="launcher",
        key="garbage collection",
        current="automatic, at another step on each rank (Python's default)",
        recommended="switched off, and done by hand at the same step on all ranks",
        reason=f"{names}{more}: now and then slow, and all others wait each time; automatic garbage collection is one "
        "cause that comes and goes like this, and no recording tells it from others",
        evidence=tuple(f"{culprit_name(each)}: {line}" for each in paused for line in each.evidence[:1])[:_MAX_SHOWN],
        gain=Gain("modelled", None, 1.0, 1 / (1 - lost) if lost else None),
        risk="Objects in circles stay until the next collection: host memory grows. Collect every few hundred steps, "
        "and watch the memory of the host. If the pauses stay, the cause is another.",
        apply="after the first step: gc.collect(); gc.freeze(); gc.disable(); then on every rank, "
        "if step % 500 == 0: gc.collect(). Megatron-LM: --manual-gc --manual-gc-interval 500",
        revert="gc.unfreeze(); gc.enable(), without the calls of gc.collect()",
        source=SOURCE,
    )


RULE = Rule("garbage_collection", judge, SOURCE)
