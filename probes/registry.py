"""Lists every probe in the order of a report. A probe's own file has its thresholds and its group."""

from __future__ import annotations

from typing import Final

from laggard.probes.gpu import busy, clocks, count, driver, lost, memory, temperature, throttle, xid
from laggard.probes.nccl import environment as nccl_environment
from laggard.probes.nccl import last_ring
from laggard.probes.nvlink import error_counters as nvlink_error_counters
from laggard.probes.nvlink import fabric_manager, fabric_state, links, p2p
from laggard.probes.pci import acs, aer, platform
from laggard.probes.pci import link as pcie_link
from laggard.probes.probe import Probe
from laggard.probes.rdma import devices, driver_log, network_devices, peermem, ports, roce
from laggard.probes.rdma import error_counters as rdma_error_counters
from laggard.probes.system import clock, cpu, disks, expected, identity, jobs, limits, mounts, site_checks, swap
from laggard.probes.system.kernel_faults import PROBE as KERNEL_FAULTS

PROBES: Final[tuple[Probe, ...]] = (
    limits.PROBE,
    clock.PROBE,
    mounts.PROBE,
    swap.PROBE,
    site_checks.PROBE,
    jobs.PROBE,
    *cpu.PROBES,
    peermem.PROBE,
    nccl_environment.PROBE,
    last_ring.PROBE,
    KERNEL_FAULTS,  # the first of the GPU group: it does not call the driver, which may hang
    xid.PROBE,  # mostly it does not either
    driver.PROBE,
    count.PROBE,
    lost.PROBE,
    *memory.PROBES,
    throttle.PROBE,
    temperature.PROBE,
    *clocks.PROBES,
    busy.PROBE,
    links.PROBE,
    *nvlink_error_counters.PROBES,
    fabric_manager.PROBE,
    fabric_state.PROBE,
    p2p.PROBE,
    *identity.PROBES,
    pcie_link.PROBE,
    *platform.PROBES,
    expected.PROBE,  # the last of the kernel's group: it looks at file systems, and the next one does more
    disks.PROBE,
    aer.PROBE,
    acs.PROBE,
    devices.PROBE,
    driver_log.PROBE,  # the kernel's log alone: first in its group, whose others ask the firmware
    ports.PROBE,
    network_devices.PROBE,
    rdma_error_counters.PROBE,
    *roce.PROBES,
)
