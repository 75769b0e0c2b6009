"""A training with Lightning, DDP on CPUs; ACT as in train_ddp.py."""

import logging
import os
import time
from typing import Any

import lightning as L
import torch
from callbacks import on_step_begin
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("train")


class Regression(L.LightningModule):
    """Learns the sum of 64 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))

    def on_train_start(self) -> None:
        """Says which process is which rank."""
        log.info("rank %d of %d is process %d", self.global_rank, self.trainer.world_size, os.getpid())

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Returns the loss of one batch, shape (8, 64)."""
        on_step_begin(self.global_rank, batch_idx)
        time.sleep(0.2)
        loss = (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """Returns AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    loader = DataLoader(TensorDataset(torch.randn(8 * 4 * 300, 64)), batch_size=8, num_workers=0)
    trainer = L.Trainer(
        accelerator="cpu", devices=4, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False
    )
    trainer.fit(Regression(), loader)
