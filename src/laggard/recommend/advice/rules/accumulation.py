"""ZeRO stage and accumulation at a constant global batch: stages 2 and 3 communicate in each micro-step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.recommend.advice.deepspeed_setting import (
    exposed_evidence,
    exposed_share,
    gain_of_saving,
    setting,
)
from laggard.recommend.advice.gpu_memory import need
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = (
    "ZeRO (Rajbhandari and others, 2020); PMBS at SC25: stage 1 wins at accumulations 32 and 16, stage 2 at 8 and 4"
)
_MIN_EXPOSED: Final = 0.05
_MANY_MICRO_BATCHES: Final = 16
"""The number of accumulated micro-batches from which on stage 1 won where both fitted."""


def judge(situation: Situation) -> Iterator[Item]:
    config, exposed = situation.deepspeed, exposed_share(situation)
    if config is None or config.stage < 2 or not config.grad_accum or config.grad_accum < 2:
        return
    if exposed is not None and exposed < _MIN_EXPOSED:
        return
    accumulated = config.grad_accum
    evidence = exposed_evidence(exposed)
    if (
        config.stage == 2
        and (exposed is not None or accumulated >= _MANY_MICRO_BATCHES)
        and _has_room(situation, stage=1)
    ):
        yield setting(
            "zero_optimization.stage",
            2,
            1,
            f"stage 2 reduces gradients in each of {accumulated} micro-steps, stage 1 once a step",
            evidence=evidence,
            gain=_gain(exposed, accumulated),
            source=SOURCE,
            risk="Stage 1 keeps all gradients on each GPU: 2 to 4 bytes a parameter more. It may run out of memory.",
        )
    fewer = 2 if accumulated % 2 == 0 else accumulated
    if config.micro_batch and _has_room(situation, micro_batch=config.micro_batch * fewer):
        yield setting(
            "gradient_accumulation_steps",
            accumulated,
            accumulated // fewer,
            f"stage {config.stage} communicates in each of {accumulated} micro-steps: fewer and larger ones do less, "
            "at the same global batch (raise train_micro_batch_size_per_gpu by the same factor)",
            evidence=evidence,
            gain=_gain_of_fewer(exposed, fewer),
            source=SOURCE,
            risk="A larger micro-batch takes more activations: it may run out of memory; recomputation makes room.",
        )


def _has_room(situation: Situation, **changes: int) -> bool:
    """Returns False where the changed configuration is known not to fit into a GPU."""
    found = need(situation, **changes)
    return found is None or found.fits


def _gain(exposed: float | None, fewer: int) -> Gain:
    """Returns the gain of communicating a `fewer`th as often, if all exposed communication is that of micro-steps."""
    return Gain("rule", None, 0.9, None) if exposed is None else gain_of_saving(exposed * (1 - 1 / fewer))


def _gain_of_fewer(exposed: float | None, fewer: int) -> Gain:
    """Returns the gain of a `fewer`th of the micro-steps. Each has an overhead besides its communication, of which the
    recording does not tell: at most all of the step is by micro-step."""
    gain = _gain(exposed, fewer)
    return gain if exposed is None else Gain(gain.basis, gain.ratio, gain.low, float(fewer))


RULE = Rule("accumulation", judge, SOURCE, "DeepSpeed 0.15 to 0.19")
