"""The readings that the GPU probes share: the GPUs to judge, and one NVML field of all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

import msgspec

from laggard.kit.majority import peer_groups
from laggard.probes.errors import NotApplicable, Unknown, or_none
from laggard.probes.gpu.model.pci_devices import find_nvidia_devices
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import UNSUPPORTED, Gpu, Nvml, explain_nvml_error
from laggard.probes.rows import holds_back

IDLE: Final = 0x01
"""nvmlClocksEventReasonGpuIdle"""

START_SECONDS: Final = 10.0
"""The time that a GPU which no process holds open may take to start, beyond that of any call: it takes 1 to 3 s in
NVIDIA's driver-persistence guide, which is older than GPUs with 80 GB and more to clear."""


def query_nvml(host: Host) -> Nvml:
    """Returns NVML's answer on a machine with NVIDIA GPUs. Raises NotApplicable where the PCI tree has none, Unknown
    where it cannot be read. Where a machine shows no PCI tree, GPUs in /dev are enough."""
    pci = find_nvidia_devices(host)
    if not pci.shown:
        return host.nvml(START_SECONDS)
    if not pci.gpus:
        if pci.unreadable:
            raise Unknown(f"PCI device {pci.unreadable[0]} and {len(pci.unreadable) - 1} more do not say what they are")
        if pci.passed_through:
            raise NotApplicable(
                f"virtual machines have all {len(pci.passed_through)} GPUs: a driver that lends devices has them"
            )
        others = f", and of its {len(pci.amd_gpus)} AMD GPUs this is not read" if pci.amd_gpus else ""
        raise NotApplicable(f"no NVIDIA GPU among {pci.total} PCI devices{others}")
    return host.nvml(0.0 if gpus_are_held(host, len(pci.gpus)) else START_SECONDS)


def query_gpus(host: Host) -> tuple[Gpu, ...]:
    """Returns the GPUs that NVML lists, at least one. Raises Unknown where NVML hangs, fails or lists none, and
    NotApplicable as query_nvml() does."""
    nvml = query_nvml(host)
    if nvml.hung:
        raise Unknown(f"was not reached: {nvml.hung.call} gave no answer in {nvml.hung.seconds} s")
    if nvml.error:
        raise Unknown(f"NVML: {explain_nvml_error(nvml.error)}")
    if not nvml.gpus:
        raise Unknown("NVML lists no GPU")
    return nvml.gpus


def known_gpus(host: Host) -> tuple[Gpu, ...]:
    """Returns the GPUs that NVML lists; none where it does not say."""
    try:
        return query_gpus(host)
    except (Unknown, NotApplicable):
        return ()


def query_non_mig_gpus(host: Host) -> tuple[Gpu, ...]:
    """Returns the GPUs that are not divided by MIG: a MIG instance has neither NVLinks nor peers. Raises as
    query_gpus() does, and NotApplicable where all GPUs are divided."""
    gpus = query_gpus(host)
    undivided = tuple(gpu for gpu in gpus if not gpu.mig)
    if not undivided:
        raise NotApplicable(f"all {len(gpus)} GPUs are in MIG mode: their parts are not judged")
    return undivided


def has_nvlinks(gpu: Gpu) -> bool:
    """Returns False for a board that has none (A10G, L40S, T4, a display card)."""
    return gpu.errors.get("links") != UNSUPPORTED


def peer_key(gpu: Gpu) -> Hashable:
    """The same for GPUs that are peers: of one model, all with NVLinks or all without."""
    return gpu.name, has_nvlinks(gpu)


def gpu_peers(gpus: Iterable[Gpu]) -> list[list[Gpu]]:
    """Returns the GPUs in the groups that are compared with each other, of which none is divided by MIG."""
    return peer_groups((gpu for gpu in gpus if not gpu.mig), peer_key)


def is_slower(gpu: Gpu, gpus: Iterable[Gpu]) -> bool:
    """Whether most of its peers that work are so much faster now that they wait for it, which works as well."""
    at_work = [it for it in gpus if it.sm_mhz and not (it.clocks_event_reasons or 0) & IDLE]
    paces = [it.sm_mhz or 0 for it in at_work if peer_key(it) == peer_key(gpu)]
    return gpu in at_work and holds_back(gpu.sm_mhz or 0, paces)


def has_nvswitches(host: Host, gpus: Iterable[Gpu]) -> bool:
    """Returns whether NVSwitches connect the GPUs. Those of newer systems, and those of a virtual machine's host, are
    not in the PCI tree; there the GPUs' registration with a fabric shows them."""
    if find_nvidia_devices(host).nvswitches:
        return True
    return any(gpu.fabric is not None and gpu.fabric.state > 0 for gpu in gpus)


def gpus_are_held(host: Host, gpus: int) -> bool:
    """Returns whether processes hold all `gpus` open (a job's, nvidia-persistenced), as the driver module's refcnt
    counts them. Without persistence mode the driver stops each GPU that nobody holds, and starts it when it is asked
    for."""
    users, modules = host.number("/sys/module/nvidia/refcnt"), or_none(host.entries, "/sys/module/nvidia/holders")
    return users is not None and modules is not None and users - len(modules) >= gpus


class FieldReadings(msgspec.Struct, frozen=True):
    """One field of several GPUs: the values, and the reasons why some GPUs gave none."""

    description: str
    values: tuple[tuple[Gpu, Any], ...]
    unreadable: tuple[str, ...]

    def raise_if_incomplete(self) -> None:
        """Raises Unknown where a GPU gave no answer, NotApplicable where no GPU has such a field. A probe calls it
        last, when it has judged the values that were read."""
        if self.unreadable:
            raise Unknown("; ".join(self.unreadable))
        if not self.values:
            raise NotApplicable(f"no GPU of this node has {self.description}")


def read_field(gpus: Iterable[Gpu], field: str, description: str) -> FieldReadings:
    """Collects a field of nvml.model.Gpu, which `description` names in messages. GPUs that lack it are left out."""
    values: list[tuple[Gpu, Any]] = []
    failed: dict[str, list[str]] = {}
    for gpu in gpus:
        value = getattr(gpu, field)
        error = gpu.errors.get(field) or gpu.errors.get("handle") or "was not read"
        if value is not None:
            values.append((gpu, value))
        elif error != UNSUPPORTED:
            failed.setdefault(error, []).append(str(gpu.index))
    unreadable = tuple(
        f"{description} of GPU {', '.join(indices)}: {explain_nvml_error(error)}" for error, indices in failed.items()
    )
    return FieldReadings(description, tuple(values), unreadable)
