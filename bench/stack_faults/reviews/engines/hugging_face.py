"""Hugging Face's Trainer."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments

from reviews import plan, text
from reviews.callbacks import after_step
from reviews.data import Reviews
from reviews.layers import Classifier
from reviews.native import compile_kernels
from reviews.optim import optimizer


class Chores(TrainerCallback):
    def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        after_step(state.global_step)


def train() -> None:
    arguments = TrainingArguments(
        output_dir=str(plan.folder() / "trainer"),
        max_steps=plan.STEPS,
        per_device_train_batch_size=plan.BATCH,
        dataloader_num_workers=plan.WORKERS,
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        bf16=False,
        remove_unused_columns=False,
    )
    compile_kernels()
    model = Classifier()
    Trainer(
        model,
        arguments,
        train_dataset=Reviews(8 * plan.STEPS * plan.BATCH),
        data_collator=text.collate,
        callbacks=[Chores()],
        optimizers=(optimizer(model), None),
    ).train()  # through: worker
