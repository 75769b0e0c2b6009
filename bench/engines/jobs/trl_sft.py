"""TRL's SFTTrainer, on rows of tokens."""

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
from workload import faults, plan
from workload.data import Texts
from workload.hugging_face import Chores, settings
from workload.lengths import times_as_long
from workload.llama import BATCH, tiny_llama
from workload.result import finish, report
from workload.tokenizer import tiny_tokenizer


def collate(rows):
    faults.before_input()
    tokens = torch.tensor([row["input_ids"] * times_as_long(plan.step) for row in rows])
    return {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": torch.ones_like(tokens)}


rows = [[4 + (number * 7 + place) % 60 for place in range(Texts.LENGTH)] for number in range(2 * BATCH * plan.STEPS)]
trainer = SFTTrainer(
    tiny_llama(),
    SFTConfig(**settings(dataset_kwargs={"skip_prepare_dataset": True})),
    data_collator=collate,
    train_dataset=Dataset.from_dict({"input_ids": rows}),
    processing_class=tiny_tokenizer(),
    callbacks=[Chores()],
)
result = trainer.train()
report([result.training_loss], trainer.model_wrapped.parameters())
finish()
