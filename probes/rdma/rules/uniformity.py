"""RDMA_FIRMWARE_MIXED, NIC_MIXED and RDMA_PKEY_MISSING: RDMA devices of one machine that differ where they should be
alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from laggard.kernel_rules.rule import rules_of
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown, Unreadable, if_present
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import judge_log, messages_of
from laggard.probes.probe import Fact, say
from laggard.probes.rdma.model.nics import PCI, Nic
from laggard.probes.rdma.model.node import nearest_ports, shared_bridges
from laggard.probes.rdma.model.sysfs import RDMA, Port, gpu_paths, pci_path, read_ports
from laggard.probes.rows import Item, Row, Told, judge_items


def judge_firmware(host: Host, names: Iterable[str]) -> Told:
    """Compares devices of one board and type that report a version; one finding for each board with several."""
    boards: dict[tuple[str, str], dict[str, str]] = {}
    for name in names:
        paths = [f"{RDMA}/{name}/{file}" for file in ("board_id", "hca_type", "fw_ver")]
        try:
            board, hca_type, version = map(host.read_if_present, paths)
        except Unknown as error:
            yield Unreadable(str(error))
            continue
        if version:
            boards.setdefault((board, hca_type), {})[name] = version
    for (board, _), versions in boards.items():
        usual = Counter(versions.values()).most_common(1)[0][0]
        items = [Item(name, int(version == usual), 1, Severity.WARNING) for name, version in versions.items()]
        yield from judge_items(host, Row("firmware", table="rdma", named={"board": board, "usual": usual}), items)


# What the ports beside most GPUs have, the ports beside each have.
#
# For each GPU its nearest ports count together: a storage port may be as near as the GPU's own, and be of another kind,
# or in other partitions.

_GAP: Final = 4
"""The empty places behind which no partition key is looked for: each is a question to the adapter's firmware, and a
subnet manager fills the table from its beginning."""


def judge_beside(host: Host, ignore: tuple[str, ...]) -> Told:
    try:
        ports = read_ports(host, ignore).ports
    except (NotApplicable, Unknown):  # the probe rdma_ports reports it
        return
    infiniband = [port for port in ports if port.active and port.kind.link_layer == "InfiniBand"]
    judged_by = ((_KINDS, _kind, ports, Severity.WARNING), (_KEYS, _keys, infiniband, Severity.CRITICAL))
    for row, traits, judged, severity in judged_by:
        groups = sorted({near for path in gpu_paths(host) if (near := nearest_ports(path, judged))})
        has = {near: frozenset(it for port in near for it in traits(host, port)) for near in groups}
        counts = Counter(trait for found in has.values() for trait in found)
        yield Fact(row.name, sorted(counts))
        usual = frozenset(trait for trait, count in counts.items() if 2 * count > len(has) >= _MIN_PLACES)
        items = [
            Item(", ".join(port.name for port in near), len(found & usual), len(usual), severity)
            for near, found in has.items()
        ]
        yield from judge_items(host, row, items)


def _kind(host: Host, port: Port) -> Iterator[str]:
    yield f"{port.kind.type} {port.kind.link_layer}"


def _keys(host: Host, port: Port) -> Iterator[str]:
    """The port's partition keys, with the bit of a full member (0x8000), as /sys writes them."""
    place, empty = 0, 0
    while empty < _GAP:
        key = (if_present(host.read, f"{port.folder}/pkeys/{place}") or "").strip()
        place, empty = place + 1, empty + 1 if key in ("", "0x0000") else 0
        if not empty:
            yield key


_KINDS: Final = Row("nic_kinds", table="rdma")
_KEYS: Final = Row("partition_keys", table="rdma")


# Finds GPUs beside which a NIC is missing: the node's other GPUs have one behind the same kind of bridge. Pure.
#
# A board is built alike for all its GPUs: one NIC behind each GPU's switch, or one for two GPUs. Where a place has
# fewer than the others, a NIC is gone, or was never put in.

_MIN_PLACES: Final = 3
"""The fewest places that show how a board is built: of two that differ, neither is the usual one."""


class Hole(msgspec.Struct, frozen=True):
    """A place with fewer NICs than the others: the PCIe bridge above it, its GPUs, and how many NICs it has and the
    others have."""

    bridge: str
    gpus: tuple[str, ...]
    nics: int
    usual: int


Path = Sequence[str]
"""The addresses of the bridges above a device, from the root port on, and its own."""


def holes(gpu_paths: Sequence[Path], nic_paths: Sequence[Path]) -> tuple[Hole, ...]:
    """The places that lack a NIC; none where the places do not show how the board is built. `nic_paths`: those of one
    model. Most places have to agree, so that at most a third are holes."""
    depth = _usual_depth(gpu_paths, nic_paths)
    if not depth:
        return ()
    places: dict[tuple[str, ...], list[str]] = {}
    for path in gpu_paths:
        places.setdefault(tuple(path[:depth]), []).append(path[-1])
    nics = Counter(tuple(path[:depth]) for path in nic_paths)
    usual, agreeing = Counter((len(gpus), nics[place]) for place, gpus in places.items()).most_common(1)[0]
    if len(places) < _MIN_PLACES or 3 * agreeing < 2 * len(places):
        return ()
    return tuple(
        Hole(place[-1], tuple(gpus), nics[place], usual[1])
        for place, gpus in places.items()
        if len(gpus) == usual[0] and nics[place] < usual[1]
    )


def _usual_depth(gpu_paths: Sequence[Path], nic_paths: Sequence[Path]) -> int:
    """How many bridges most GPUs share with their nearest NIC; 0 where most share none."""
    depths = Counter(max((shared_bridges(gpu, nic) for nic in nic_paths), default=0) for gpu in gpu_paths)
    depth, gpus = depths.most_common(1)[0] if depths else (0, 0)
    return depth if 2 * gpus > len(gpu_paths) else 0


def by_root(address: str, roots: Mapping[str, Sequence[int]]) -> tuple[str, int] | None:
    """The domain and the first bus of the PCI host bridge below which `address` is; None where no root is known.
    `roots`: the first buses of the host bridges, by domain. Each has the buses up to the next one."""
    domain, bus = address.split(":")[:2]
    below = [first for first in roots.get(domain, ()) if first <= int(bus, 16)]
    return (domain, max(below)) if below else None


# RDMA_DEVICE_MISSING: a NIC that is gone from the PCI bus, so that nothing of it is left to be judged.
#
# What is left is the hole in the layout, and what the kernel wrote when the NIC went. The hole alone is a warning:
# a NIC may never have been put in. Together they are critical.

# Texts, and not compiled: on most machines no NIC is missing, and a gate starts sooner.
_ROOT: Final = r"pci([0-9a-f]{4,8}):([0-9a-f]{2})"
_UNPLUGGED: Final = ("Link Down", "Card not present")
_SLOT: Final = (  # drivers/pci/hotplug/pciehp_ctrl.c
    r"pcieport ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): pciehp: Slot\([^)]*\): "
    r"(Link Down|Card not present|Link Up|Card present)"
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
        log = host.kernel_log()
        present = frozenset(host.entries(PCI))
    except Unknown:
        return {}
    told = judge_log(log, rules_of("devices", "nic", "pcie")).open()
    errors = (
        (hit.groups["device"].lower(), hit.last[:200]) for rule, hit in told if rule.severity is Severity.CRITICAL
    )
    lost = {address: text for address, text in errors if address not in present}
    slots = {match[1]: (match[2], it.text[:200]) for it in messages_of(log) if (match := re.match(_SLOT, it.text))}
    empty = {bridge: text for bridge, (what, text) in slots.items() if what in _UNPLUGGED}
    return {**lost, **empty}


def _roots(host: Host) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name in host.names("/sys/devices"):
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
    why = "one is gone from the PCI bus" if witness else "and no line of the kernel's log says that one went"
    severity = Severity.CRITICAL if witness else Severity.WARNING
    evidence = {"bridge": hole.bridge, "gpus": hole.gpus, "nics": hole.nics, "usual": hole.usual, "log": witness}
    return say("rdma", "gone", f"beside GPU {hole.gpus[0]}", evidence, severity, nics=hole.nics, many=many, why=why)
