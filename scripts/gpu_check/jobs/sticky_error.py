"""One process that trains, until an index outside of a tensor ends it: on a GPU by a device-side assertion, after which
every call of CUDA fails; in a rehearsal by an IndexError. It knows nothing of laggard."""

from __future__ import annotations

import torch

from gpu_check.ending import end_with_parent
from gpu_check.jobs.loads import find_loads

STEPS, BAD_STEP, OUTSIDE = 6, 4, 9_999_999

if __name__ == "__main__":
    end_with_parent()
    loads = find_loads()
    model = torch.nn.Linear(64, 64).to(loads.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        model(torch.ones(8, 64, device=loads.device)).sum().backward()
        if step == BAD_STEP:
            torch.ones(4, device=loads.device)[torch.tensor([OUTSIDE], device=loads.device)]
        optimizer.step()
        optimizer.zero_grad()
        loads.synchronize()
