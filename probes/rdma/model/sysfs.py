"""RDMA devices and their ports as /sys/class/infiniband shows them, read once into values. No judgement here.

What cannot be read is named in `unread`, and the probe that needs it ends in Unknown; a port without a readable state
is left out, never taken for a good one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import Thresholds
from laggard.probes.rdma.model.nics import PCI, Nic, gpu_addresses, read_nics
from laggard.probes.rdma.model.port import RDMA, Kind, Port, parse_rate, parse_state

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class RdmaThresholds(Thresholds, frozen=True):
    """What the probes of RDMA ports have in common."""

    ignore: tuple[str, ...] = ()
    """Devices that are not judged, as patterns."""

    soft: bool = False
    """Judge devices made of software (rxe, siw) as well: for laboratories, where they are all there is."""


class Ports(NamedTuple):
    """Of all hardware devices. `soft`: devices made of software (rxe, siw), which no training job should use."""

    ports: tuple[Port, ...]
    soft: tuple[str, ...]
    unread: tuple[str, ...]


def is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def device_names(host: Host) -> tuple[str, ...]:
    """An empty answer is believed only of a /sys that could be listed."""
    return host.entries(RDMA) if "infiniband" in host.entries("/sys/class") else ()


def read_ports(host: Host, ignore: Sequence[str] = (), judge_soft: bool = False) -> Ports:
    """Of the devices that no pattern of `ignore` names. Raises NotApplicable where there is provably no RDMA device,
    Unknown where that cannot be told."""
    names = device_names(host)
    if not names:
        _explain_none(host)
    soft = () if judge_soft else tuple(name for name in names if is_soft(host, name))
    unread: list[str] = []
    hard = [name for name in names if name not in soft and not is_any(name, ignore)]
    ports = tuple(port for name in hard for port in _device_ports(host, name, unread))
    if not ports and not unread:
        raise NotApplicable(f"no RDMA hardware to judge, only {', '.join(names)}")
    return Ports(ports, soft, tuple(unread))


def finish(unread: tuple[str, ...] | list[str]) -> None:
    """The end of a probe: it cannot vouch for what it did not read."""
    if unread:
        more = f" (and {len(unread) - 3} more)" if len(unread) > 3 else ""
        raise Unknown("; ".join(unread[:3]) + more)


def optional(host: Host, path: str) -> str:
    """A file that not every driver has."""
    try:
        return host.read(path).strip()
    except NotFound:
        return ""


def is_soft(host: Host, name: str) -> bool:
    try:
        return "/virtual/" in host.read_link(f"{RDMA}/{name}")
    except Unknown:  # a recording may hold folders in place of sysfs's links
        return False


def pci_path(host: Host, folder: str) -> tuple[str, ...]:
    """The bridges above the PCI device at `folder`, and itself: ("0000:15:01.0", ..., "0000:1a:00.0"); empty where it
    is none, or not told."""
    try:
        parts = host.real_path(folder).split("/")
    except Unknown:
        return ()
    return tuple(part for part in parts if _ADDRESS.fullmatch(part))


def gpu_paths(host: Host) -> tuple[tuple[str, ...], ...]:
    return tuple(path for address in gpu_addresses(host) if (path := pci_path(host, f"{PCI}/{address}")))


def pci_address(host: Host, name: str) -> str:
    return (pci_path(host, f"{RDMA}/{name}/device") or ("",))[-1]


def _explain_none(host: Host) -> None:
    nics = read_nics(host)
    if not nics:
        raise NotApplicable("no RDMA device, and no NIC on the PCI bus that could be one")
    without = [nic for nic in nics if nic.infiniband]
    if without:
        raise Unknown(f"{without[0].address} has no RDMA device: see probe rdma_devices")
    raise NotApplicable(f"no RDMA device; {_named(nics)} for plain Ethernet")


def _named(nics: tuple[Nic, ...]) -> str:
    return f"{nics[0].address} is" if len(nics) == 1 else f"{len(nics)} NICs are"


def _device_ports(host: Host, name: str, unread: list[str]) -> list[Port]:
    folder = f"{RDMA}/{name}"
    try:
        numbers = [int(number) for number in host.entries(f"{folder}/ports") if number.isdecimal()]
        kind = optional(host, f"{folder}/hca_type"), optional(host, f"{folder}/board_id")
    except Unknown as error:
        unread.append(str(error))
        return []
    path = pci_path(host, f"{folder}/device")
    found = []
    for number in sorted(numbers):
        try:
            found.append(_port(host, name, number, path, kind))
        except Unknown as error:
            unread.append(str(error))
    return found


def _port(host: Host, device: str, number: int, path: tuple[str, ...], kind: tuple[str, str]) -> Port:
    address = path[-1] if path else ""
    folder = f"{RDMA}/{device}/ports/{number}"
    texts = {name: host.read(f"{folder}/{name}").strip() for name in ("state", "phys_state", "rate", "link_layer")}
    state, phys, rate = parse_state(texts["state"]), parse_state(texts["phys_state"]), parse_rate(texts["rate"])
    if state is None or phys is None:
        raise Unknown(f"{folder} tells no state: {texts['state'][:40]!r}, {texts['phys_state'][:40]!r}")
    if rate is None:
        raise Unknown(f"{folder}/rate is no rate: {texts['rate'][:40]!r}")
    return Port(
        device=device,
        number=number,
        address=address,
        path=path,
        kind=Kind(*kind, texts["link_layer"], address.rpartition(".")[2]),
        state=state[0],
        state_text=state[1],
        phys_state=phys[0],
        phys_text=phys[1],
        rate_gigabits=rate[0],
        lanes=rate[1],
        rate_text=texts["rate"],
        virtual_function=bool(address) and _has(host, f"{RDMA}/{device}/device", "physfn"),
    )


def _has(host: Host, folder: str, name: str) -> bool:
    try:
        return name in host.entries(folder)
    except Unknown:
        return False
