"""Says what surrounds the training: versions, and the variables that change how fast it is. A later run is compared
with that (`laggard locate --against`). Also which transports its NCCL uses. Never raises; looks on the writer
thread."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from laggard.kit.environment import ENV_NCCL_LOG, rank_dir
from laggard.nccl.private_log import LOG_SETTINGS, PrivateLog, loaded_version, nccl_variables, observe, prepare_log
from laggard.rankfile.fact_names import ENVIRONMENT, TRANSPORT
from laggard.rankfile.layout import log_directory
from laggard.trainer_hooks.record.ending import FACTS, Facts

log = logging.getLogger("laggard")

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


# Reports now and then which transports this rank's NCCL uses.

_BEATS_PER_CHECK: Final = 15
_MAX_EMPTY_CHECKS: Final = 8  # in a row, after which a process is taken not to use NCCL


class TransportWatch:
    """Watches the NCCL of one process: prepare() before the script runs, beat() at every beat, close() at the end."""

    def __init__(self, facts: Facts = FACTS) -> None:
        self._facts = facts
        self._log: PrivateLog | None = None
        self.is_prepared = False
        self._beats = 0
        self._empty_checks = 0

    def prepare(self) -> None:
        """Has NCCL write a log for laggard alone, unless the user has it log already. The log is in memory, in this
        user's rank directory, as long as the process runs."""
        self.is_prepared = True
        try:
            self._log = prepare_log(os.environ, log_directory(rank_dir(os.environ)))
        except Exception as error:
            reason = getattr(error, "strerror", None) or error
            log.warning("laggard: no log of NCCL: %s: %s", type(error).__name__, reason)

    def beat(self) -> None:
        """Sets the fact TRANSPORT at every 15th beat. Gives up on a process that loads no NCCL, and after an error."""
        self._beats += 1
        if self._empty_checks >= _MAX_EMPTY_CHECKS or self._beats % _BEATS_PER_CHECK != 1:
            return
        try:
            self._check()
        except Exception:
            self._empty_checks = _MAX_EMPTY_CHECKS

    def _check(self) -> None:
        transport = observe(self._log, os.environ)
        if transport.version_source == "library" or transport.process.connections:
            self._empty_checks = 0
            self._facts.set(TRANSPORT, json.loads(transport.to_json()))
        else:
            self._empty_checks += 1

    def close(self) -> None:
        """Removes the private log."""
        if self._log is not None:
            self._log.remove()


WATCH: Final = TransportWatch()
"""The watch of this process."""
