"""The advice about a GPU's memory: states that do not fit, offload and quantisation, and recomputation of
activations: memory bought with time or with precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from laggard.recommend.advice.deepspeed import Need, exposed_evidence, exposed_share, need, need_text, setting
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item

MODEL_STATES_SOURCE: Final = (
    "ZeRO (Rajbhandari and others, 2020): stage 1 divides optimizer states among GPUs, 2 gradients, 3 weights; "
    "ZeRO-Offload (Ren and others, 2021); Adam takes 16 bytes a parameter, and buffers 4 GB, as jobs were seen to need"
)


def judge_model_states(situation: Situation) -> Iterator[Item]:
    config, now = situation.deepspeed, need(situation)
    if config is None or now is None or now.states_fit:
        return
    for stage in range(config.stage + 1, 4):
        if _fits(need(situation, stage=stage)):
            yield _repair("zero_optimization.stage", config.stage, stage, now)
            return
    if not config.offload_optimizer and _fits(need(situation, stage=3, offload_optimizer="cpu")):
        if config.stage < 3:
            yield _repair("zero_optimization.stage", config.stage, 3, now)
        yield _repair("zero_optimization.offload_optimizer.device", "none", "cpu", now)


def _fits(found: Need | None) -> bool:
    return found is not None and found.fits


def _repair(key: str, current: Any, recommended: Any, now: Need) -> Item:
    item = setting(
        key,
        current,
        recommended,
        "the model does not fit into the GPUs: the job will run out of memory",
        evidence=(need_text(now),),
        gain=Gain("rule"),
        risk="More communication, or copies over PCIe, in each step: slower than what fits without it.",
        source=MODEL_STATES_SOURCE,
    )
    return msgspec.structs.replace(item, repairs=True)


OFFLOAD_SOURCE: Final = "ZeRO-Offload (Ren and others, 2021); ZeRO++ (Wang and others, 2023); DeepSpeed's documentation"
_MIN_EXPOSED: Final = 0.2


def judge_offload(situation: Situation) -> Iterator[Item]:
    """It holds for DeepSpeed 0.15 to 0.19; quantised weights are there from 0.10 on."""
    config, exposed = situation.deepspeed, exposed_share(situation)
    if config is None:
        return
    for key, device in (("offload_optimizer", config.offload_optimizer), ("offload_param", config.offload_param)):
        without = need(situation, **{key: ""})
        if device and (without is None or without.fits):
            yield setting(
                f"zero_optimization.{key}.device",
                device,
                "none",
                f"states go over PCIe to {device} in each step: where they fit into the GPUs this is time for nothing; "
                "recomputation of activations (gradient checkpointing) makes room for about a third more compute",
                gain=Gain("rule", None, 1.0, None),
                risk="Without it the job may run out of memory: try with the same micro-batch first.",
                source=OFFLOAD_SOURCE,
            )
    if config.stage != 3 or exposed is None or exposed < _MIN_EXPOSED:
        return
    if not config.quantized_weights:
        yield setting(
            "zero_optimization.zero_quantized_weights",
            False,
            True,
            "weights are gathered twice in each micro-step: in 8 bits they are half as many bytes",
            gain=Gain("modelled", None, 0.9, 1 / (1 - exposed / 3)),
            risk="It changes results a little: an option to be measured, with the loss beside it.",
            source=OFFLOAD_SOURCE,
        )
    if not config.quantized_gradients:
        yield setting(
            "zero_optimization.zero_quantized_gradients",
            False,
            True,
            "gradients are reduced in each micro-step: in 4 bits and all to all they are a quarter of the bytes",
            gain=Gain("modelled", None, 0.9, 1 / (1 - exposed / 4)),
            risk="It changes results more than quantised weights do: measure with the loss beside it, after them.",
            source=OFFLOAD_SOURCE,
        )


RECOMPUTATION_SOURCE: Final = (
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


def judge_recomputation(situation: Situation) -> Iterator[Item]:
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
        source=RECOMPUTATION_SOURCE,
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
        source=RECOMPUTATION_SOURCE,
    )
