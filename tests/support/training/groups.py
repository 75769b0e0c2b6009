"""Process groups that are started in every way that names no backend, ended by whatever name, and made again; one that
is written in Python."""

import os
import threading
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from common import Model, finish, loader, print_result
from torch.distributed import destroy_process_group  # before the hooks, where the script attaches late
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.testing._internal.distributed import fake_pg as fake_pg  # the backend `fake`

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def train(name: str, model: Any, steps: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for x in loader(steps):
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    print_result(name, losses, model.parameters())


def start(number: int, backend: str | None) -> None:
    place = f"{os.environ['TMPDIR']}/store-{os.environ['MASTER_PORT']}-{number}"
    dist.init_process_group(backend, init_method=f"file://{place}", rank=RANK, world_size=WORLD_SIZE)


def functional_all_reduces() -> None:
    """The steps' collectives are made by C++ alone, from the first step on."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        hidden = model(torch.ones(2, 4))
        once = functional.all_reduce(hidden.detach(), "sum", dist.group.WORLD)
        twice = functional.all_reduce(once, "sum", dist.group.WORLD)
        optimizer.zero_grad()
        (hidden + twice).sum().backward()
        optimizer.step()
    print_result("functional", [], model.parameters())


class PythonWork(dist._Work):
    def __init__(self, result: Any, group: Any) -> None:
        super().__init__()
        self.future: Any = torch.futures.Future()
        self.future.set_result(result)
        self.group = weakref.ref(group)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Any:
        return self.future


class PythonGroup(dist.ProcessGroup):
    """A group of this rank alone, as torch's own tests of DDP have one (test_c10d_pypg.py)."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.calls: list[str] = []
        self.works: list[Any] = []

    def _work(self, name: str, result: Any) -> Any:
        self.calls.append(name)
        self.works.append(PythonWork(result, self))
        return self.works[-1]

    def broadcast(self, tensors: Any, options: Any) -> Any:
        return self._work("broadcast", tensors)

    def allreduce(self, tensors: Any, options: Any) -> Any:
        return self._work("allreduce", tensors)

    def allgather(self, outputs: Any, inputs: Any, options: Any) -> Any:
        for output, given in zip(outputs, inputs, strict=True):
            output[0].copy_(given)
        return self._work("allgather", outputs)

    def size(self) -> int:
        return 1

    def getSize(self) -> int:
        return 1

    def getBackendName(self) -> str:
        return "python"


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    init_device_mesh("cpu", (WORLD_SIZE,))
    train("mesh", DDP(Model()))
    destroy_process_group()
    start(1, None)
    train("none", DDP(Model()))
    for _ in range(20):
        group = dist.new_group([0, 1])
        all_reduce_and_let_go(group)
        destroy_process_group(group)
        del group
    print_result(f"groups are released: {threading.active_count() < 20 and os_threads() < 30}", [], [])
    destroy_process_group()
    start(2, "cpu:gloo,cuda:fake")
    train("two backends", DDP(Model()))
    functional_all_reduces()
    group = PythonGroup()
    train("python", DDP(Model(), process_group=group))
    print_result(repr(group.calls), [], [])
    finish()


def all_reduce_and_let_go(group: Any) -> None:
    """Until gloo's thread has let go of the tensor, for which it needs the GIL: before torch 2.9 a group's destructor
    holds the GIL and waits for that thread (pytorch#154976)."""
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=group)
    held = weakref.ref(tensor)
    del tensor
    while held() is not None:
        time.sleep(0.001)


def os_threads() -> int:
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    main()
