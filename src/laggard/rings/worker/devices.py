"""The facts that a worker tells of its device before the ring begins."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from typing import Any, Final

from laggard.kit.environment import ENV_NCCL_LOG
from laggard.nccl.log.model import NcclProcess
from laggard.nccl.log.reader import parse_nccl_log
from laggard.nccl.private_log import LOG_SETTINGS, count_open_uverbs, loaded_version, nccl_variables
from laggard.nccl.transport import LOG_EMPTY, LOG_OF_THE_USER, LOG_READ, Transport
from laggard.rings.messages import Observed, Ready

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


# The one place of rings that imports torch. It runs in workers alone, which are processes of their own.


def load_torch() -> Any:
    """Returns torch with torch.distributed. Raises ImportError, or OSError where a library of it is missing."""
    import torch
    import torch.distributed

    return torch


_MAX_LOG_BYTES: Final = 16 << 20
_RDMA: Final = "/sys/class/infiniband"


def observe(environ: Mapping[str, str], rank: int, version: str, rdma_devices: str = _RDMA) -> Observed:
    """Reads the log so far. Where the job's nccl.conf directs NCCL's log elsewhere, there is none to read."""
    pattern = environ.get(ENV_NCCL_LOG, "")
    process = _logged(pattern.replace("%p", str(os.getpid())).replace("%%", "%")) if pattern else None
    transport = Transport(
        nccl_version=loaded_version("/proc/self") or version,
        version_source="library",
        variables=nccl_variables(environ, LOG_SETTINGS if pattern else ()),
        uverbs=count_open_uverbs("/proc/self"),
        log=LOG_READ if process else LOG_EMPTY if pattern else LOG_OF_THE_USER,
        process=process or NcclProcess("", 0),
        rank=rank,
    )
    return Observed(transport.to_json(), has_rdma(rdma_devices))


def has_rdma(path: str = _RDMA) -> bool | None:
    """Whether the machine has an RDMA device that is not made of software, which has no device behind it; None: this
    process may not look."""
    try:
        return any(os.path.exists(os.path.join(path, name, "device")) for name in os.listdir(path))
    except FileNotFoundError:
        return False
    except OSError:
        return None


def _logged(path: str) -> NcclProcess | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            log = parse_nccl_log(file.read(_MAX_LOG_BYTES))
    except OSError:
        return None
    return max(log.processes, key=lambda process: process.started, default=None)
