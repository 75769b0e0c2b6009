"""A loop with Hugging Face Accelerate, whose dataset keeps what it has decoded. LEAK_RANK names the rank that does."""

import logging
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

log = logging.getLogger("train")


class Images(Dataset):
    """A dataset of SAMPLES samples, or of 20,000, shape (64,)."""

    def __init__(self, is_leaking: bool) -> None:
        self.is_leaking = is_leaking
        self.decoded = []

    def __len__(self) -> int:
        return int(os.environ.get("SAMPLES", "20000"))

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.is_leaking:
            self.decoded.append(torch.ones(1 << 20))
        return torch.randn(64)


def main() -> None:
    """Trains one epoch."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    log.info("rank %d of %d is process %d on %s", rank, accelerator.num_processes, os.getpid(), os.uname().nodename)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = Images(str(rank) == os.environ["LEAK_RANK"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(images, batch_size=8, num_workers=1))
    for batch in tqdm(loader, disable=not accelerator.is_local_main_process, mininterval=2):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
