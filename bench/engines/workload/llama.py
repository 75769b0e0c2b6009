"""A tiny Llama, made from a configuration, and its tokens: nothing is loaded."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from workload.data import Texts
from workload.model import paced

BATCH = 4


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=Texts.VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    paced(model, model.model.norm, BATCH * Texts.LENGTH)
    return model


def tokens() -> dict[str, torch.Tensor]:
    """A batch to evaluate on."""
    ids = torch.arange(BATCH * Texts.LENGTH).reshape(BATCH, Texts.LENGTH) % Texts.VOCABULARY
    return {"input_ids": ids, "labels": ids}
