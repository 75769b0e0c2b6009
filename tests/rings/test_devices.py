"""What a ring's worker says of its device, with a torch for AMD's GPUs: `torch.version.hip`, RCCL under NCCL's name."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.lazy_device import LazyDevice
from support.lazy_torch import lazy_torch

from laggard.rings.worker import devices
from laggard.rings.worker.devices import describe_device
from laggard.rings.worker.group import Group


def rocm_torch(gpus: int = 8, rccl: bool = True) -> Any:
    """A module in the place of a ROCm build of torch, which has AMD's GPUs in torch.cuda and no CUDA."""
    cuda = SimpleNamespace(
        is_available=lambda: gpus > 0,
        device_count=lambda: gpus,
        set_device=lambda index: None,
        mem_get_info=lambda index: (190 << 30, 192 << 30),
        get_device_properties=lambda index: SimpleNamespace(name="AMD Instinct MI300X"),
        nccl=SimpleNamespace(version=lambda: (2, 22, 3)),
    )
    distributed = SimpleNamespace(is_nccl_available=lambda: rccl, is_gloo_available=lambda: True)
    return SimpleNamespace(
        __version__="2.9.0+rocm6.4",
        version=SimpleNamespace(cuda=None, hip="6.4.43484"),
        cuda=cuda,
        distributed=distributed,
    )


def amd_machine(root: Path, pci_class: str) -> str:
    device = root / "sys/bus/pci/drivers/amdgpu/0000:05:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text(pci_class + "\n")
    (root / "dev").mkdir()
    (root / "dev/kfd").write_text("")
    return f"{root}/"


def test_a_rocm_torch_measures_its_gpus_over_rccl() -> None:
    ready = describe_device(rocm_torch(), "auto", 3)
    assert (ready.device, ready.devices, ready.model, ready.nccl) == ("cuda", 8, "AMD Instinct MI300X", "2.22.3")
    assert not ready.reason
    assert "has no RCCL" in describe_device(rocm_torch(rccl=False), "auto", 0).reason


@pytest.mark.parametrize(("pci_class", "has"), [("0x120000", True), ("0x038000", True), ("0x030000", False)])
def test_an_amd_gpu_that_computes_is_one_and_a_display_is_none(pci_class: str, has: bool, tmp_path: Path) -> None:
    assert devices._has_gpus(amd_machine(tmp_path, pci_class)) is has
    assert devices._has_gpus(f"{tmp_path}/nowhere/") is False


def test_a_torch_without_gpus_measures_no_cpus_where_there_are_amd_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_has_gpus", lambda: True)
    assert "can use no GPU" in describe_device(rocm_torch(gpus=0), "auto", 0).reason
    monkeypatch.setattr(devices, "_has_gpus", lambda: False)
    assert describe_device(rocm_torch(gpus=0), "auto", 0).device == "cpu"


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
