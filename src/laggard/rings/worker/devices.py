"""The facts that a worker tells of its device before the ring begins."""

from __future__ import annotations

import os
from typing import Any, Final

from laggard.rings.messages import Ready

_IN_USE_RATIO: Final = 0.1
"""The share of an idle GPU's memory from which on it is in use: its driver and this process's context need less."""


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
        return f"torch {torch.__version__} has no NCCL; --device cpu measures CPUs"
    if local_rank >= devices:
        return f"rank {local_rank} of this node has no GPU: torch sees {devices}"
    torch.cuda.set_device(local_rank)
    free, total = torch.cuda.mem_get_info(local_rank)
    if 1 - free / total > _IN_USE_RATIO:
        return f"GPU {local_rank} is in use: {100 * (1 - free / total):.0f} % of its memory is taken"
    return ""


def _has_gpus() -> bool:
    """Whether NVIDIA's driver shows a GPU to this process."""
    return any(os.path.exists(path) for path in ("/dev/nvidia0", "/dev/nvidiactl"))


def _nccl_version(torch: Any) -> str:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()[:3]))
    except Exception:  # built without NCCL
        return ""
