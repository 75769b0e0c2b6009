"""Lightning's Trainer, with DDP."""

import os
import tempfile

import lightning.pytorch as pl
import torch
from workload import plan
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()
        self.losses = []

    def training_step(self, batch, number):
        loss = self.model(batch).square().mean()
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Chores(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        after_step(module.model)


module = Module()
trainer = pl.Trainer(
    max_steps=plan.STEPS,
    accelerator="cpu",
    devices=int(os.environ["WORLD_SIZE"]),
    strategy="ddp",
    callbacks=[Chores()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=False,
    default_root_dir=tempfile.mkdtemp(),
)
trainer.fit(module, loader())
report(module.losses, module.parameters())
finish()
