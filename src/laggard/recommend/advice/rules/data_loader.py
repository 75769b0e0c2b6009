"""Ranks that wait for input: the data loader has too few workers, or its storage is slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.rules.slow_rank import gain_of
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = "PyTorch's documentation of torch.utils.data.DataLoader; measured on this job"
_MIN_SHARE: Final = 0.05


def judge(situation: Situation) -> Iterator[Item]:
    """A rank that alone is slow to get its input is a culprit, and what the job waits for it was measured: one cause
    has one gain. Where all ranks wait for input, it is at most what the rank waits that waits longest."""
    share = situation.profile.input_share if situation.profile else None
    if share is None or share < _MIN_SHARE:
        return
    yield Item(
        target="launcher",
        key="DataLoader(num_workers, prefetch_factor, pin_memory)",
        current=None,
        recommended="more workers, at most the cores of a rank; pin_memory=True; persistent_workers=True",
        reason=f"a rank waits for input for {share * 100:.0f} % of each step",
        evidence=(f"input: {share:.1%} of a step",),
        gain=_gain_of_culprit(situation) or Gain("measured", 1 / (1 - share), 1.0, 1 / (1 - share)),
        risk="Each worker takes memory of the host; a storage that is slow stays slow.",
        apply="DataLoader(..., num_workers=N, pin_memory=True, persistent_workers=True)",
        revert="the arguments as they were",
        source=SOURCE,
    )


def _gain_of_culprit(situation: Situation) -> Gain | None:
    gains = [gain_of(each) for each in situation.culprits if each.kind == "slow_input"]
    return max((gain for gain in gains if gain.ratio), key=lambda gain: gain.ratio or 0.0, default=None)


RULE = Rule("data_loader", judge, SOURCE)
