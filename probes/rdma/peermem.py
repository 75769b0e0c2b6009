"""PEERMEM_MISSING: a machine with GPUs and RDMA NICs where no NIC can reach a GPU's memory."""

from __future__ import annotations

import re
from typing import Final

from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.pci_devices import read_pci_gpus
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import loaded_modules
from laggard.probes.probe import KERNEL, Count, Fact, Probe, Thresholds
from laggard.probes.rdma.model.nics import read_nics
from laggard.probes.rows import Item, Row, Told, judge_items

_MODULES = ("nvidia_peermem", "nv_peer_mem")  # the module of NVIDIA's driver, and the older separate one
_AMAZON = 0x1D0F  # EFA needs neither to reach GPU memory
_DRIVER = "/proc/driver/nvidia/version"
_RELEASE = "/proc/sys/kernel/osrelease"
_NO_GPU = "no NVIDIA GPU in the PCI tree"


class PeermemThresholds(Thresholds, frozen=True):
    dma_buf_kernel: tuple[int, int] = (5, 12)
    """The first Linux whose RDMA core accepts DMA-BUF memory."""

    dma_buf_driver: Count = 515
    """The first NVIDIA driver branch with open kernel modules, which export DMA-BUF (CUDA 11.7)."""


def check(host: Host, thresholds: PeermemThresholds) -> Told:
    try:
        loaded = loaded_modules(host)
    except Unknown:
        if not read_pci_gpus(host):  # as in a container that sees no modules: nothing there needs them
            raise NotApplicable(_NO_GPU) from None
        raise
    present = [module for module in _MODULES if module in loaded]
    if present:  # then the PCI tree, which takes longest to read, does not matter
        yield Fact("way", present[0])
        return
    gpus = read_pci_gpus(host)
    nics = [nic for nic in read_nics(host) if nic.vendor != _AMAZON and "vfio" not in nic.driver] if gpus else []
    if not gpus or not nics:
        raise NotApplicable("no RDMA NIC that would need it in the PCI tree" if gpus else _NO_GPU)
    if "nvidia" not in loaded:
        raise Unknown("the NVIDIA driver is not loaded: there is nothing yet that could offer GPU memory")
    driver, release = host.read(_DRIVER), host.read(_RELEASE).strip()
    if _has_dma_buf(driver, release, thresholds):
        yield Fact("way", "DMA-BUF")
    else:
        yield from judge_items(host, _PEERMEM, [Item("nvidia_peermem", 0, 1)])


def _has_dma_buf(driver: str, release: str, thresholds: PeermemThresholds) -> bool:
    branch = re.search(r"\b(\d{3,4})\.\d+(?:\.\d+)?\b", driver)
    kernel = re.match(r"(\d+)\.(\d+)", release)
    if branch is None or kernel is None:
        raise Unknown(f"{_DRIVER} or {_RELEASE} names no version")
    return (
        "Open Kernel Module" in driver
        and int(branch[1]) >= thresholds.dma_buf_driver
        and (int(kernel[1]), int(kernel[2])) >= thresholds.dma_buf_kernel
    )


_PEERMEM: Final = Row("peermem", table="rdma")
PROBE: Final = Probe("peermem", check, PeermemThresholds(), group=KERNEL)
