"""One process that trains, forks, and trains on: children by os.fork and of a DataLoader, which use no GPU. It knows
nothing of laggard. It prints how the first child ended, and what the others loaded."""

from __future__ import annotations

import os

import torch

from gpu_check.ending import end_with_parent
from gpu_check.jobs.loads import find_loads

STEPS, CHILD_STATUS, WORKERS = 4, 7, 2


class Numbers(torch.utils.data.Dataset):
    """The numbers 0 to 15, each as 64 of it."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> torch.Tensor:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return torch.full((64,), float(place))


def main() -> None:
    loads = find_loads()
    model = torch.nn.Linear(64, 64).to(loads.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def train(batches: object) -> float:
        total = 0.0
        for x in batches:  # type: ignore[attr-defined]
            model(x.to(loads.device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            total += float(x.sum())
        return total

    train(torch.ones(STEPS, 8, 64))
    child = os.fork()
    if not child:
        os._exit(CHILD_STATUS)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=WORKERS, multiprocessing_context="fork")
    print(f"child {status}, loaded {train(loader):g}, then {train(torch.ones(STEPS, 8, 64)):g}", flush=True)
    loads.synchronize()


if __name__ == "__main__":
    end_with_parent()
    main()
