"""The parts that the rules about DeepSpeed share: the item of a setting, the evidence, and what hidden communication
gains."""

from __future__ import annotations

import json
from typing import Any

from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item


def setting(
    key: str,
    current: Any,
    recommended: Any,
    reason: str,
    *,
    gain: Gain,
    risk: str,
    source: str,
    evidence: tuple[str, ...] = (),
) -> Item:
    """Returns the item that changes one setting. `key` has its section before it: `zero_optimization.stage`."""
    section, _, name = key.rpartition(".")
    place = f" in {section}" if section else ""
    return Item(
        target="deepspeed",
        key=key,
        current=current,
        recommended=recommended,
        reason=reason,
        evidence=evidence,
        gain=gain,
        risk=risk,
        apply=f'"{name}": {json.dumps(recommended)}{place}',
        revert=f'"{name}": {json.dumps(current)}{place}',
        source=source,
    )


def exposed_share(situation: Situation) -> float | None:
    """The share of a step that ranks wait in collectives; None without a recording."""
    return situation.profile.exposed_share if situation.profile else None


def exposed_evidence(exposed: float | None) -> tuple[str, ...]:
    return () if exposed is None else (f"{exposed:.0%} of a step is spent in collectives",)


def gain_of_saving(share: float) -> Gain:
    """The gain of saving at most this share of a step: from nothing to all of it, half in the middle."""
    return Gain("modelled", 1 / (1 - share / 2), 1.0, 1 / (1 - share))
