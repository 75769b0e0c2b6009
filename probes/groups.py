"""The groups: probes of one group run in one process, one after the other, and share what is costly to start."""

from __future__ import annotations

from typing import Final

from laggard.probes.probe import ProbeGroup

GPU: Final = ProbeGroup("gpu", 29.5)
"""Probes that ask NVML, which is started and read once. Eight GPUs without persistence mode take up to 24 s to start;
profiles and hangs end it earlier."""

KERNEL: Final = ProbeGroup("kernel", 2.0)
"""Probes that read what the kernel holds in memory, and ask no device and no other process: none of them waits. A
process for each would cost the agent several times what they do."""

PCI: Final = ProbeGroup("pci", 2.0)
"""Probes that ask the devices' configuration space. Where a device keeps one of them waiting, it would keep each."""

RDMA: Final = ProbeGroup("rdma", 4.0)
"""Probes that ask the RDMA adapters, by sysfs and ioctl: the driver asks the firmware for much of it, and one adapter
whose firmware does not answer keeps each of them waiting."""

ACTIVE: Final = ProbeGroup("active", 240.0)
"""Probes that load the GPUs. torch is imported once, perhaps from a slow file system; sixteen GPUs are started, and
each takes some eight seconds."""
