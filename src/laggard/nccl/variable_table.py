"""What a row of variables.txt means, which has every environment variable of NCCL, and what else reads NCCL_*.

Standard library only; laggard.nccl.variables looks variables up by name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

Version = tuple[int, ...]

TABLE_VERSION: Final[Version] = (2, 32, 3)
"""The release that the table describes. A variable that the table lacks may be newer."""


class Category(enum.Enum):
    """The purpose of a variable. The values are those of the table's second column."""

    SAFETY = "A1"
    """Correctness, safety and identity: not to be tuned."""
    OFF_SWITCH = "A2"
    """Switches something off."""
    SITE = "B"
    """Facts of the site: which network, which device."""
    TUNING = "C"
    """Algorithm, protocol, channels, transport: what a tuner may try."""
    SOCKETS = "C3"
    """The variables for sockets only."""
    OBSERVABILITY = "D"
    """Logs, plugins, observability."""
    OBSOLETE = "E"
    """Deprecated or removed."""
    DEVICE_API = "F"
    """Device, symmetric and one-sided interfaces of 2.27 and later."""


class Variable(NamedTuple):
    """One row of the table."""

    name: str
    category: Category
    since: str
    """The first version that reads the variable; empty: 2.3 or older."""
    removed: str
    """The first version that no longer reads it; empty: none."""
    default: str
    """Empty: the variable is unset; `auto`: NCCL decides."""
    values: str
    """A range (`0..7`, `1..`), words separated by commas, `int`, or the name of a grammar (`algo`, `proto`, `level`,
    `netdevs`); empty: any text."""
    documented: bool
    """True where it is in NCCL's user guide."""
    note: str


PLUGIN_PREFIXES: Final[Mapping[str, str]] = {
    "NCCL_FASTRAK_": "Google GPUDirect-TCPXO plugin",
    "NCCL_GPUDIRECTTCPX_": "Google GPUDirect-TCPX plugin",
    "NCCL_SHIMNET_": "Google's configuration checker",
    "NCCL_GIB_": "Google gIB plugin",
    "NCCL_TELEMETRY_": "Google's telemetry plugin",
    "NCCL_OFI_": "AWS OFI plugin",
    "NCCL_IBEXT_": "NVIDIA RDMA-SHARP plugin",
    "NCCL_SHARP_": "NVIDIA RDMA-SHARP plugin",
    "NCCL_UCX_": "NVIDIA RDMA-SHARP plugin",
    "NCCL_INSPECTOR_": "NCCL Inspector profiler plugin",
    "NCCL_PROFILE_": "NCCL example profiler plugin",
    "NCCL_PROFILER_": "NCCL profiler plugins",
    "NCCL_TESTS_": "nccl-tests",
    "NCCL_CTRAN_": "Meta's NCCLX",
    "NCCL_COLLTRACE": "Meta's NCCLX",
}
"""Plugins and tools by the prefix of the variables that they read; any name with such a prefix is accepted. (AWS's
OFI_NCCL_* and torch's TORCH_NCCL_* do not begin with NCCL_.)"""

OTHER_READERS: Final[Mapping[str, str]] = {
    "NCCL_VERSION": "set by NVIDIA's container images, for information",
    "NCCL_ROOT": "used by builds",
    "NCCL_ROOT_DIR": "used by builds",
    "NCCL_HOME": "used by builds",
    "NCCL_PATH": "used by builds",
    "NCCL_DIR": "used by builds",
    "NCCL_LIBRARY": "used by builds",
    "NCCL_LIB": "used by builds",
    "NCCL_LIB_DIR": "used by builds and by Google's set-up scripts",
    "NCCL_LIBRARIES": "used by builds",
    "NCCL_INCLUDE": "used by builds",
    "NCCL_INCLUDE_DIR": "used by builds",
    "NCCL_INCLUDE_DIRS": "used by builds",
    "NCCL_ASYNC_ERROR_HANDLING": "torch's former name of TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "torch's former name of TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "torch's former name of TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "torch's former name of TORCH_NCCL_ENABLE_TIMING",
    "NCCL_AVOID_RECORD_STREAMS": "torch's former name of TORCH_NCCL_AVOID_RECORD_STREAMS",
}
"""Variables that NCCL does not read and other software does, and what that is."""

REPLACEMENTS: Final[Mapping[str, str]] = {
    "NCCL_CHECKS_DISABLE": "NCCL_CHECK_POINTERS",
    "NCCL_CHECK_POINTERS": "NCCL_CHECK_MODE",
    "NCCL_GRAPH": "NCCL_GRAPH_FILE",
    "NCCL_IB_CUDA_SUPPORT": "NCCL_NET_GDR_LEVEL",
    "NCCL_IB_GDR_LEVEL": "NCCL_NET_GDR_LEVEL",
    "NCCL_LL_THRESHOLD": "NCCL_PROTO",
    "NCCL_MAX_NCHANNELS": "NCCL_MAX_CTAS",
    "NCCL_MAX_NRINGS": "NCCL_MAX_CTAS",
    "NCCL_MIN_NCHANNELS": "NCCL_MIN_CTAS",
    "NCCL_MIN_NRINGS": "NCCL_MIN_CTAS",
    "NCCL_MNNVL": "NCCL_MNNVL_ENABLE",
    "NCCL_RINGS": "NCCL_GRAPH_FILE",
    "NCCL_THREAD_THRESHOLD": "NCCL_THREAD_THRESHOLDS",
    "NCCL_TREE_THRESHOLD": "NCCL_ALGO",
    "NCCL_WORK_FIFO_DEPTH": "NCCL_WORK_FIFO_BYTES",
}
"""The variable that replaces a deprecated or removed one."""

COMMON_MISTAKES: Final[Mapping[str, str]] = {
    "NCCL_CHECK_DISABLE": "NCCL_CHECKS_DISABLE",
    "NCCL_MIN_CHANNELS": "NCCL_MIN_CTAS",
    "NCCL_MAX_CHANNELS": "NCCL_MAX_CTAS",
    "NCCL_TIMEOUT": "NCCL_IB_TIMEOUT",
    "NCCL_IB_NET_LATENCY": "NCCL_NET_OVERHEAD",
    "NCCL_NET_DISABLE": "NCCL_NET",
}
"""Names in published configurations that no version of NCCL reads, and the variable that was probably meant."""

SECRET: Final = frozenset({"NCCL_SOCKET_MAGIC", "NCCL_COMM_ID"})
"""Variables whose values only the ranks may know: no part of laggard keeps them."""
