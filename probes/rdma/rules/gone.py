"""RDMA_DEVICE_MISSING: a NIC that is gone from the PCI bus, so that nothing of it is left to be judged.

What is left is the hole in the layout, and what the kernel wrote when the NIC went. The hole alone is a warning:
a NIC may never have been put in. Together they are critical.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import parse_messages
from laggard.probes.pci.rules.kernel_messages import device_errors_of
from laggard.probes.probe import finding
from laggard.probes.rdma.model.nics import PCI, Nic
from laggard.probes.rdma.model.sysfs import gpu_paths, pci_path
from laggard.probes.rdma.rules.uniformity import Hole, Path, by_root, holes

# Texts, and not compiled: on most machines no NIC is missing, and a gate starts sooner.
_ROOT: Final = r"pci([0-9a-f]{4,8}):([0-9a-f]{2})"
_UNPLUGGED: Final = ("Link Down", "Card not present")
_SLOT: Final = (  # drivers/pci/hotplug/pciehp_ctrl.c
    r"pcieport ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): pciehp: Slot\([^)]*\): "
    r"(Link Down|Card not present|Link Up|Card present)"
)
_FIX: Final = (
    "Power the node off and on. If the NIC is not back on the PCI bus, reseat it or its riser; then replace it. Where "
    "this place never had a NIC, accept the warning."
)


def judge_gone(host: Host, nics: Sequence[Nic]) -> Iterator[Finding]:
    """`nics`: those that are on the bus now."""
    gpus = gpu_paths(host)
    found = holes(gpus, _paths_of_most(host, nics))
    if not found:
        return
    witnesses = _witnesses(host)
    roots = _roots(host)
    others = {part for nic in nics if nic.model != _most(nics) for part in pci_path(host, f"{PCI}/{nic.address}")}
    for hole in found:
        path = next(path for path in gpus if path[-1] == hole.gpus[0])
        witness = _witness(path, witnesses, roots)
        if witness or hole.bridge not in others:  # a NIC of another model may be there in its stead
            yield _gone(hole, witness)


def _paths_of_most(host: Host, nics: Sequence[Nic]) -> list[Path]:
    """The places of the NICs of the model that the node has most of."""
    model = _most(nics)
    return [path for nic in nics if nic.model == model and (path := pci_path(host, f"{PCI}/{nic.address}"))]


def _most(nics: Sequence[Nic]) -> tuple[int, int, bool, bool] | None:
    models = Counter(nic.model for nic in nics if not nic.physical_function)
    return models.most_common(1)[0][0] if models else None


def _witnesses(host: Host) -> dict[str, str]:
    """The lines of the kernel's log since boot about devices that are not on the bus now: the last of each, by the
    address of the device, or of the slot's bridge that lost it. What cannot be read says nothing."""
    try:
        messages = list(parse_messages(host.kernel_log()))
        present = frozenset(host.entries(PCI))
    except Unknown:
        return {}
    errors = [it for it in device_errors_of(messages) if it.severity is Severity.CRITICAL and it.code != "GPU_LOST"]
    lost = {it.device: str(it.evidence.get("last", it.summary)) for it in errors if it.device not in present}
    slots = {match[1]: (match[2], it.text[:200]) for it in messages if (match := re.match(_SLOT, it.text))}
    empty = {bridge: text for bridge, (what, text) in slots.items() if what in _UNPLUGGED}
    return {**lost, **empty}


def _roots(host: Host) -> dict[str, list[int]]:
    try:
        names = host.entries("/sys/devices")
    except Unknown:
        return {}
    found: dict[str, list[int]] = {}
    for name in names:
        if match := re.fullmatch(_ROOT, name):
            found.setdefault(match[1], []).append(int(match[2], 16))
    return found


def _witness(path: Path, witnesses: Mapping[str, str], roots: Mapping[str, Sequence[int]]) -> str:
    """The line about a device below the same PCI host bridge as the GPU at `path`; empty where there is none."""
    place = by_root(path[0], roots)
    lines: Iterable[str] = (line for address, line in witnesses.items() if by_root(address, roots) == place)
    return next(iter(lines), "") if place else ""


def _gone(hole: Hole, witness: str) -> Finding:
    many = f"{hole.usual} NIC" + ("" if hole.usual == 1 else "s")
    has = f"has {hole.nics} of the {many} that the other GPUs have beside them"
    why = "one is gone from the PCI bus" if witness else "and no line of the kernel's log says that one went"
    return finding(
        "RDMA_DEVICE_MISSING",
        f"beside GPU {hole.gpus[0]}",
        f"{has}, {why}",
        severity=Severity.CRITICAL if witness else Severity.WARNING,
        evidence={"bridge": hole.bridge, "gpus": hole.gpus, "nics": hole.nics, "usual": hole.usual, "log": witness},
        fix=_FIX,
        commands=("lspci -tv", "dmesg -T | grep -i -e mlx5 -e pciehp -e AER"),
    )
