"""The hooks with a torch for AMD's GPUs: `torch.version.hip` is set, `torch.version.cuda` is None, RCCL is `nccl`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.lazy_torch import LazyTensor
from support.lazy_training import MS, KeepingSink, hooked, recorder_to, train, usual

from laggard.trainer_hooks.device.gpu import Placement, gpu_uuid
from laggard.trainer_hooks.record.events import BACKWARD

NVIDIA_ONLY = ("pynvml", "nvidia_smi", "cuda", "cupy")


@pytest.fixture
def rocm(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch.cuda of lazy devices, as a ROCm build has it: RCCL's version, and properties with gcnArchName."""
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None, hip="6.4.43484"), raising=False)
    for name in NVIDIA_ONLY:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it raises ImportError
    return torch


def test_work_and_waits_are_timed(rocm: Any) -> None:
    kept, placement = KeepingSink(), Placement()
    placement.saw([LazyTensor(0)])
    recorder = recorder_to(kept, placement)
    reduce = hooked(rocm, recorder, 12 * MS, 0)

    def backward() -> None:
        rocm.lazy_cuda.launch(0, 4 * MS)
        reduce(LazyTensor(0), "nccl")

    train(rocm, recorder, backward, device=0)
    assert recorder.totals.errors == recorder.totals.lost == 0 and kept.on_device == kept.collected == 6
    assert usual(kept.steps, lambda step: step.waited) == pytest.approx(12 * MS, abs=6 * MS)
    assert usual(kept.steps, lambda step: step.phases[BACKWARD]) == pytest.approx(4 * MS, abs=4 * MS)


def test_the_uuid_is_torchs_and_may_be_absent(rocm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm.cuda.set_device(0)
    monkeypatch.setattr(rocm.cuda, "is_initialized", lambda: True)
    of = {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-"}
    uuid = "66333330-6463-3464-3030-646565323262"
    monkeypatch.setattr(rocm.cuda, "get_device_properties", lambda index: SimpleNamespace(**of, uuid=uuid))
    assert gpu_uuid(0) == f"GPU-{uuid}"
    monkeypatch.setattr(rocm.cuda, "get_device_properties", lambda index: SimpleNamespace(**of))  # torch 2.3
    assert gpu_uuid(0) is None
