"""The parts that the rules about DeepSpeed share: the item of a setting, what hidden communication gains, and the
room that a GPU's memory has. Pure."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from laggard.deepspeed_config import DeepSpeedConfig
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item
from laggard.recommend.zero import MemoryPlan, StateBytes, state_bytes


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


_HALF: Final = StateBytes()
_SINGLE: Final = StateBytes(4, 4, 8)
"""Training in fp32: Adam needs no master copy."""


class Need(NamedTuple):
    """Bytes of one GPU: what is to be held, and what is there."""

    states: float
    activations: float
    """0 where not known."""
    buffers: float
    gpu: float

    @property
    def fits(self) -> bool:
        return self.states + self.activations + self.buffers <= self.gpu

    @property
    def states_fit(self) -> bool:
        return self.states + self.buffers <= self.gpu


def need(situation: Situation, **changes: Any) -> Need | None:
    """Returns what the configuration needs, with `changes` to the fields of DeepSpeedConfig; None where the model's
    size, the GPU's memory or the number of GPUs is not known."""
    size, config = situation.model_size, situation.deepspeed
    gpus = size.gpus or situation.ranks if size else None
    if size is None or config is None or not gpus:
        return None
    config = config._replace(**changes)
    plan = MemoryPlan(size.parameters, gpus, size.gpu_bytes, _on_gpu(situation, config), size.resident_bytes)
    states = state_bytes(config.stage, plan) + size.resident_bytes
    return Need(states, size.sample_bytes * (config.micro_batch or 0), plan.buffers_bytes, size.gpu_bytes)


def _on_gpu(situation: Situation, config: DeepSpeedConfig) -> StateBytes:
    """Returns the bytes for each parameter, without what is offloaded."""
    document = situation.deepspeed_document or {}
    sections = [document.get(name) for name in ("fp16", "bf16")]
    half = any(isinstance(each, dict) and each.get("enabled") for each in sections)
    own = _HALF if half else _SINGLE
    return own._replace(
        optimizer=0.0 if config.offload_optimizer else own.optimizer,
        weight=0.0 if config.offload_param else own.weight,
    )


def need_text(found: Need) -> str:
    """`weights, gradients and optimizer states take 128.0 GB and buffers 4.0 GB of a GPU's 80.0 GB`"""
    activations = f", activations {found.activations / 1e9:.1f} GB" if found.activations else ""
    return (
        f"weights, gradients and optimizer states take {found.states / 1e9:.1f} GB{activations} and buffers "
        f"{found.buffers / 1e9:.1f} GB of a GPU's {found.gpu / 1e9:.1f} GB"
    )
