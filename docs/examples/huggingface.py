"""Hugging Face's Trainer, in two ranks.

    torchrun --nproc-per-node 2 --no-python laggard run docs/examples/huggingface.py

Without `laggard run` the callback attaches the hooks.
"""

import tempfile

import torch
from transformers import Trainer, TrainingArguments

from laggard.trainer_hooks.huggingface import LaggardCallback


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 4)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


data = [{"x": torch.randn(32)} for _ in range(80)]
with tempfile.TemporaryDirectory() as directory:
    arguments = TrainingArguments(
        directory, per_device_train_batch_size=8, max_steps=10, report_to="none", save_strategy="no", use_cpu=True
    )
    Trainer(Model(), arguments, train_dataset=data, callbacks=[LaggardCallback()]).train()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
