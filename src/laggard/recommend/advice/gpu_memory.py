"""The room that a GPU's memory has under a job's DeepSpeed configuration, as far as the model's size is known. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from laggard.deepspeed_config import DeepSpeedConfig
from laggard.recommend.advice.situation import Situation
from laggard.recommend.memory import MemoryPlan, StateBytes, state_bytes

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
