"""Recomputation of activations (activation checkpointing): memory bought with computing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from laggard.recommend.advice.deepspeed_setting import exposed_evidence, exposed_share
from laggard.recommend.advice.gpu_memory import need, need_text
from laggard.recommend.advice.rule import Rule
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

SOURCE: Final = (
    "Chen and others, 2016 (Training Deep Nets with Sublinear Memory Cost): one more forward pass; DeepSpeed's "
    "documentation of activation_checkpointing; INDIS at SC25: recomputation makes room for a larger batch"
)
_SECTION: Final = "activation_checkpointing"
_KEY: Final = "recomputation of activations"
_OUT_OF_MEMORY: Final = "JOB_GPU_OUT_OF_MEMORY"
_FORWARD_SHARE: Final = 1 / 4
"""The share of computing with full recomputation that a forward pass takes: forward, forward again, and a backward pass
of two forward passes' time."""
_SLOWER: Final = 0.9


def judge(situation: Situation) -> Iterator[Item]:
    section = (situation.deepspeed_document or {}).get(_SECTION)
    configured = isinstance(section, dict) and bool(section)
    out_of_memory = situation.finding(_OUT_OF_MEMORY)
    expected = need(situation)
    too_large = expected is not None and expected.states_fit and not expected.fits
    if not configured and out_of_memory is not None:
        yield _switched_on("the job ran out of GPU memory", (_OUT_OF_MEMORY, out_of_memory.summary))
    elif not configured and too_large and expected is not None:
        yield _switched_on("the job will run out of GPU memory", (need_text(expected),))
    if configured and isinstance(section, dict) and out_of_memory is None and not too_large:
        yield _switched_off(section, exposed_share(situation))


def _switched_on(because: str, evidence: tuple[str, ...]) -> Item:
    return Item(
        target="launcher",
        key=_KEY,
        current=None,
        recommended="on",
        reason=f"{because}: recomputation keeps the inputs of layers and no other activations",
        evidence=evidence,
        gain=Gain("rule"),
        risk="Computing takes up to a third longer. It does not help where weights, gradients and states alone do not "
        "fit: then raise the ZeRO stage, or offload.",
        apply="model.gradient_checkpointing_enable() with Hugging Face's models, else torch.utils.checkpoint around "
        "each layer. A smaller micro-batch with as much more accumulation is the other way at the same global batch.",
        revert="model.gradient_checkpointing_disable(), or the layers without torch.utils.checkpoint",
        source=SOURCE,
        repairs=True,
    )


def _switched_off(section: Mapping[str, Any], exposed: float | None) -> Item:
    """The advice to switch recomputation off. It saves at most the second forward pass, of what is not
    communication."""
    saved = _FORWARD_SHARE * (1 - (exposed or 0.0))
    copied = section.get("cpu_checkpointing") is True
    return Item(
        target="launcher",
        key=_KEY,
        current="on" + (", with activations copied to the host" if copied else ""),
        recommended="off, or for some of the layers, where GPU memory is to spare",
        reason=f"the configuration has {_SECTION}: each recomputed layer does its forward pass twice"
        + (", and cpu_checkpointing copies activations over PCIe" if copied else ""),
        evidence=exposed_evidence(exposed),
        gain=Gain("rule" if exposed is None else "modelled", None, _SLOWER, None if copied else 1 / (1 - saved)),
        risk="The job may run out of memory: look at the peak first (torch.cuda.max_memory_allocated). A smaller "
        "micro-batch to make room can cost more than recomputation does: an option to be measured.",
        apply="model.gradient_checkpointing_disable() with Hugging Face's models, else the layers without the call of "
        "deepspeed.checkpointing.checkpoint; the section of the configuration alone switches nothing on or off",
        revert="the call as it was",
        source=SOURCE,
    )


RULE = Rule("recomputation", judge, SOURCE)
