"""Says what surrounds the training: versions, and the variables that change how fast it is. A later run is compared
with that (`laggard locate --against`). Never raises; looks on the writer thread."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from laggard.kit.environment import ENV_NCCL_LOG
from laggard.nccl.private_log import LOG_SETTINGS, loaded_version, nccl_variables
from laggard.rankfile.fact_names import ENVIRONMENT
from laggard.trainer_hooks.record.ending import Facts

VARIABLES: Final = frozenset(
    {
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_LAUNCH_BLOCKING",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_NUM_THREADS",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "TORCH_COMPILE_DISABLE",
        "TORCH_CUDNN_V8_API_DISABLED",
        "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT",
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        "TORCH_NCCL_BLOCKING_WAIT",
        "TORCH_NCCL_CUDA_EVENT_CACHE",
        "TORCH_NCCL_ENABLE_MONITORING",
        "TORCH_NCCL_ENABLE_TIMING",
        "TORCH_NCCL_HIGH_PRIORITY",
        "TORCH_NCCL_NAN_CHECK",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_USE_COMM_NONBLOCKING",
    }
)
"""torch's own variables, and its libraries', whose values are told beside NCCL's: none of them is a secret (torch's
documentation, "Torch Environment Variables" and "ProcessGroupNCCL Environment Variables"). Of any other nothing is
told."""

MAX_VALUE: Final = 96
MAX_CHARACTERS: Final = 1600
"""The most characters of all together: a rank file has 8 KiB of facts, which others need more."""

_LOOKS: Final = (0, 10, 60)
"""The beats at which it looks: NCCL is loaded with the first collective on a GPU."""

_DRIVER = re.compile(r"Module\s+(?:for \S+\s+)?(\d+\.[0-9.]+)")


class RunEnvironment:
    """Its beat() is called about once a second."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._beats = 0

    def beat(self) -> None:
        if self._beats in _LOOKS:
            self._facts.set(ENVIRONMENT, _bounded(run_environment(os.environ)))
        self._beats += 1


def run_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Versions by name, then variables. What is not known is left out."""
    torch: Any = sys.modules.get("torch")
    yield "python", platform.python_version()
    yield "torch", str(getattr(torch, "__version__", ""))
    versions = getattr(torch, "version", None)
    yield "cuda", str(getattr(versions, "cuda", None) or "")
    yield "hip", str(getattr(versions, "hip", None) or "")
    yield "nccl", loaded_version("/proc/self")
    yield "driver", _first(_DRIVER, "/proc/driver/nvidia/version")
    yield "gpu", _gpu_model(torch)
    yield "kernel", platform.release()
    yield "os", _first(re.compile(r'^PRETTY_NAME="?([^"\n]*)', re.MULTILINE), "/etc/os-release")
    yield "image", environ.get("NVIDIA_PYTORCH_VERSION", "")  # NGC's images have it
    yield "deepspeed", str(getattr(sys.modules.get("deepspeed"), "__version__", ""))
    own = LOG_SETTINGS if ENV_NCCL_LOG in environ else ()
    yield from nccl_variables(environ, own)
    yield from sorted((name, environ[name]) for name in VARIABLES & environ.keys())


def _bounded(found: Iterator[tuple[str, str]]) -> dict[str, str]:
    values: dict[str, str] = {}
    left = MAX_CHARACTERS
    for name, value in found:
        shown = value[:MAX_VALUE]
        left -= len(name) + len(shown) + 6
        if shown and left >= 0:
            values[name] = shown
    return values


def _first(pattern: re.Pattern[str], path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            match = pattern.search(file.read(4096))
    except OSError:
        return ""
    return match[1].strip() if match else ""


def _gpu_model(torch: Any) -> str:
    """Of the first GPU; empty where CUDA is not initialized: this function must not do that."""
    if torch is None or not torch.cuda.is_initialized():
        return ""
    return str(torch.cuda.get_device_properties(0).name)
