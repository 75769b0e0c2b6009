"""The same training, started by torch.multiprocessing.spawn."""

import os
import sys

import torch.multiprocessing as mp
from train_own import main


def worker(rank: int, world_size: int) -> None:
    """Is one rank."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    main()


if __name__ == "__main__":
    mp.spawn(worker, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]))
