"""DistributedDataParallel with the hooks, over groups that are not torch's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # trainings with torch

# A group written in Python, as torchft's are and those of torch's own test_c10d_pypg.py.
PYTHON_GROUP = """
import weakref, torch, torch.distributed as dist

class Done(dist.Work):
    def __init__(self, result, group):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)
        self.group = weakref.ref(group)
    def wait(self, timeout=None): return True
    def get_future(self): return self.future

class Alone(dist.ProcessGroup):
    def __init__(self):
        super().__init__(0, 1)
        self.calls, self.works = [], []
    def note(self, name, result):
        self.calls.append(name)
        self.works.append(Done(result, self))
        return self.works[-1]
    def broadcast(self, tensors, opts): return self.note("broadcast", tensors)
    def allreduce(self, tensors, opts): return self.note("allreduce", tensors)
    def allgather(self, outputs, inputs, opts):
        for output, given in zip(outputs, inputs): output[0].copy_(given)
        return self.note("allgather", outputs)
    def size(self): return 1
    def getSize(self): return 1
    def getBackendName(self): return "alone"

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
group = Alone()
parts = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))  # with buffers, which DDP broadcasts
model = torch.nn.parallel.DistributedDataParallel(parts, process_group=group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(3, 4)).square().sum().backward()
    optimizer.step()
print(group.calls)
dist.destroy_process_group()
"""


def test_a_group_written_in_python_is_called_as_without_the_hooks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PYTHON_GROUP)
    environment = {**os.environ, "LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "GLOO_SOCKET_IFNAME": "lo"}
    with_hooks, without = (
        subprocess.run(
            [sys.executable, *hooks, str(script)], capture_output=True, text=True, timeout=300, env=environment
        )
        for hooks in (("-m", "laggard", "run"), ())
    )
    assert with_hooks.returncode == without.returncode == 0, with_hooks.stderr
    assert with_hooks.stdout == without.stdout and without.stdout.count("broadcast") > 4
