"""The facts that a worker tells of its device before the ring begins."""

from __future__ import annotations

import glob
import os
from typing import Any, Final

from laggard.rings.messages import Ready

_IN_USE_RATIO: Final = 0.1
"""The share of an idle GPU's memory from which on it is in use: its driver and this process's context need less."""
_AMD_CLASSES: Final = ("0x0302", "0x0380", "0x1200")
"""PCI classes: 3D and other display controllers, processing accelerators. The VGA controller of a processor is none."""


def describe_device(torch: Any, wanted: str, local_rank: int) -> Ready:
    """`wanted`: auto, cuda or cpu. With `auto` a machine that has GPUs is never measured by its CPUs: the answer would
    be about something else than was asked."""
    version = str(torch.__version__)
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available() and not _has_gpus()):
        reason = "" if torch.distributed.is_gloo_available() else f"torch {version} has no gloo"
        return Ready("cpu", 1, "CPU", version, "", reason)
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    reason = _cuda_problem(torch, devices, local_rank)
    model = "" if reason else torch.cuda.get_device_properties(local_rank).name
    return Ready("cuda", devices, model, version, _nccl_version(torch), reason)


def _cuda_problem(torch: Any, devices: int, local_rank: int) -> str:
    if not devices:
        return f"torch {torch.__version__} can use no GPU; --device cpu measures CPUs"
    if not torch.distributed.is_nccl_available():
        return f"torch {torch.__version__} has no {_library(torch)}; --device cpu measures CPUs"
    if local_rank >= devices:
        return f"rank {local_rank} of this node has no GPU: torch sees {devices}"
    torch.cuda.set_device(local_rank)
    free, total = torch.cuda.mem_get_info(local_rank)
    if 1 - free / total > _IN_USE_RATIO:
        return f"GPU {local_rank} is in use: {100 * (1 - free / total):.0f} % of its memory is taken"
    return ""


def _has_gpus(root: str = "/") -> bool:
    """Whether a driver shows this process a GPU that computes: NVIDIA's, or AMD's one that is no display's."""
    if any(os.path.exists(f"{root}{path}") for path in ("dev/nvidia0", "dev/nvidiactl")):
        return True
    return os.path.exists(f"{root}dev/kfd") and any(map(_computes, glob.glob(f"{root}sys/bus/pci/drivers/amdgpu/*:*")))


def _computes(device: str) -> bool:
    try:
        with open(f"{device}/class", encoding="ascii", errors="replace") as file:
            return file.read(8).startswith(_AMD_CLASSES)
    except OSError:
        return False


def _library(torch: Any) -> str:
    """What torch calls NCCL: RCCL in a torch for AMD's GPUs, which has `torch.version.hip`."""
    return "RCCL" if getattr(getattr(torch, "version", None), "hip", None) else "NCCL"


def _nccl_version(torch: Any) -> str:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()[:3]))
    except Exception:  # built without NCCL
        return ""
