"""Hugging Face's Trainer with the strategy that is its argument: ddp, fsdp, or zero0 to zero3 of DeepSpeed."""

import sys

from transformers import Trainer, TrainingArguments
from workload import plan
from workload.data import Texts
from workload.hugging_face import Chores, settings
from workload.llama import BATCH, tiny_llama
from workload.result import finish, report

strategy, more = sys.argv[1], {}
if strategy == "fsdp":
    more = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
elif strategy.startswith("zero"):
    import workload.deepspeed_on_cpu  # noqa: F401

    more["deepspeed"] = {
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "zero_optimization": {"stage": int(strategy[-1])},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
arguments = TrainingArguments(**settings(**more))
texts = Texts(BATCH, 2 * BATCH * plan.STEPS)
spread = strategy in ("fsdp", "zero3")
trainer = Trainer(tiny_llama(), arguments, train_dataset=texts, callbacks=[Chores(spread)])
result = trainer.train()
report([result.training_loss], trainer.model_wrapped.parameters())
finish()
