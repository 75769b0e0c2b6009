"""A ring's worker on a GPU, without CUDA: its GPU, and no other, gets a context."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.lazy_device import LazyDevice
from support.lazy_torch import lazy_torch

from laggard.rings.worker.devices import describe_device
from laggard.rings.worker.group import Group


class Nccl:
    """Stands in for ProcessGroupNCCL: the tests make their own collectives."""

    Options = SimpleNamespace

    def __init__(self, *_: Any) -> None: ...


@pytest.mark.parametrize("cuda", [12, 11])
def test_a_worker_has_a_context_on_its_own_gpu_alone(cuda: int) -> None:
    torch = lazy_torch(LazyDevice(), LazyDevice(), cuda=cuda, initialized=False)
    torch.distributed.is_nccl_available = lambda: True
    torch.distributed.ProcessGroupNCCL = Nccl
    ready = describe_device(torch, "cuda", 1)
    assert (ready.device, ready.devices, ready.reason) == ("cuda", 2, "")
    group = Group(torch, "cuda:1", None, 0, 1, 60.0, "")
    times = group.timed(lambda: torch.lazy_cuda.launch(1, 0.002), 3)
    assert len(times) == 3 and all(it >= 0.002 for it in times)
    assert torch.lazy_cuda.contexts == {1}
