"""Lightning, in two ranks.

    torchrun --nproc-per-node 2 --no-python laggard run docs/examples/lightning_ddp.py

Without `laggard run` the callback attaches the hooks.
"""

import os

import lightning.pytorch as pl
import torch

from laggard.trainer_hooks.lightning import LaggardCallback


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 4)

    def training_step(self, batch, number):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


trainer = pl.Trainer(
    max_steps=10,
    accelerator="cpu",
    devices=int(os.environ["WORLD_SIZE"]),
    strategy="ddp",
    callbacks=[LaggardCallback()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(200, 32), batch_size=8))
torch.distributed.destroy_process_group()
