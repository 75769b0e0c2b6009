"""The bytes that the RDMA devices of this machine have carried since they started, by their own counters."""

from __future__ import annotations

import contextlib
import glob
import os
from typing import Final

_COUNTERS: Final = (
    # In words of four bytes (InfiniBand Architecture Specification 16.1.3.5).
    ("counters/port_xmit_data", 4),
    ("counters/port_rcv_data", 4),
    ("hw_counters/tx_bytes", 1),  # EFA
    ("hw_counters/rx_bytes", 1),
    # RDMA in software counts packets alone: by the smallest that carries a large message, of 1024 bytes.
    ("hw_counters/sent_pkts", 1024),
    ("hw_counters/rcvd_pkts", 1024),
)
_MAX_PORTS: Final = 256


def rdma_bytes(sys: str = "/sys") -> int | None:
    """Returns the sum over all ports that are up, sent and received; None where there is no such port, or no counter
    that can be read."""
    total, read = 0, False
    for port in sorted(glob.glob(f"{glob.escape(sys)}/class/infiniband/*/ports/*"))[:_MAX_PORTS]:
        if "ACTIVE" not in _read(f"{port}/state"):
            continue
        for name, unit in _COUNTERS:
            text = _read(os.path.join(port, name)).strip()
            if text.isdecimal():
                total += int(text) * unit
                read = True
    return total if read else None


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read(64)
    return ""
