"""Local SGD on four ranks: the ranks train alone and exchange their parameters by files, after all have said "saved".

The store says who has saved. A rank whose list of shards ends stops; EMPTY_RANK's list is the shorter one.
"""

import datetime
import logging
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from heads import configure

configure()
log = logging.getLogger("local_sgd")
FOLDER = pathlib.Path("/home/ml/exchange")


def train_round(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Trains ten batches of this rank's shard, and returns the last loss."""
    for _ in range(10):
        batch = torch.randn(16, 64)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.1)
    return loss.item()


def exchange(store: dist.Store, model: torch.nn.Module, rank: int, turn: int, timeout: datetime.timedelta) -> None:
    """Averages the parameters of all ranks, once each has saved its own."""
    torch.save(model.state_dict(), FOLDER / f"{turn}_{rank}.pt")
    store.set(f"saved/{turn}/{rank}", "yes")
    store.wait([f"saved/{turn}/{other}" for other in range(4)], timeout)
    states = [torch.load(FOLDER / f"{turn}_{other}.pt") for other in range(4)]
    model.load_state_dict({key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]})


def main() -> None:
    """Trains 40 rounds, or as many as this rank has shards."""
    rank = int(os.environ["RANK"])
    timeout = datetime.timedelta(seconds=float(os.environ["TIMEOUT_S"]))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], 29500, 4, rank == 0, timeout)
    log.info("rank %d of 4 is process %d on %s", rank, os.getpid(), os.uname().nodename)
    FOLDER.mkdir(exist_ok=True)
    shards = 6 if str(rank) == os.environ.get("EMPTY_RANK") else 40
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for turn in range(40):
        if turn >= shards:
            log.info("shard list is at its end after round %d, training done", turn - 1)
            sys.exit(0)
        loss = train_round(model, optimizer)
        log.info("round %d loss %.4f, wait for the others' parameters", turn, loss)
        exchange(store, model, rank, turn, timeout)
    log.info("training done")


if __name__ == "__main__":
    main()
