"""The transports that the rank's NCCL uses, by the log that it writes for this ring."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from laggard.environment import ENV_NCCL_LOG
from laggard.nccl.library import loaded_version
from laggard.nccl.log.model import NcclProcess
from laggard.nccl.log.reader import parse_nccl_log
from laggard.nccl.observe import count_open_uverbs, nccl_variables
from laggard.nccl.private_log import LOG_SETTINGS
from laggard.nccl.transport import LOG_EMPTY, LOG_OF_THE_USER, LOG_READ, Transport
from laggard.rings.messages import Observed

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
