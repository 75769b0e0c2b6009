"""RDMA_DRIVER_ERROR: what a NIC's driver wrote to the kernel's log since boot, within a look-back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable
from laggard.probes.host.host import Host
from laggard.probes.host.uptime import read_uptime
from laggard.probes.pci.rules.kernel_messages import find_device_errors
from laggard.probes.probe import Probe, Thresholds
from laggard.probes.rdma.model.nics import read_nics

_CODE = "RDMA_DRIVER_ERROR"
_DRIVER = "mlx5_core"


class RdmaDriverThresholds(Thresholds, frozen=True):
    look_back_seconds: float = 86400.0
    """The time for which a line of the log counts; a restart of the driver ends it earlier."""


def check(host: Host, thresholds: RdmaDriverThresholds) -> Iterator[Finding]:
    nics = read_nics(host)
    if not any(nic.driver == _DRIVER for nic in nics):
        raise NotApplicable(f"none of {len(nics)} RDMA NICs in the PCI tree runs with {_DRIVER}")
    since = read_uptime(host) - thresholds.look_back_seconds
    present = {nic.address for nic in nics}
    for found in find_device_errors(host.kernel_log(), since):
        if found.code == _CODE and found.device in present:  # a NIC that was taken out is no fault any more
            yield found


PROBE: Final = Probe("rdma_driver", check, RdmaDriverThresholds())
