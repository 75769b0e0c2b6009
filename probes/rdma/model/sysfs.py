"""RDMA devices and their ports as /sys/class/infiniband shows them, read once into values. Nothing is judged here.

A port that cannot be read is Unreadable, never taken for a good one, and the probe that needs it ends in Unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, NoReturn

from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import Thresholds
from laggard.probes.rdma.model.nics import PCI, gpu_addresses, read_nics
from laggard.probes.rdma.model.port import RDMA, Port, PortKind, parse_rate, parse_state
from laggard.probes.unreadable import Unreadable, split_unreadable
from laggard.text.lazy_pattern import lazy_pattern

_ADDRESS = lazy_pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class RdmaThresholds(Thresholds, frozen=True):
    """The thresholds that all probes of RDMA ports have."""

    ignore: tuple[str, ...] = ()
    """Patterns of the devices that are not judged."""

    soft: bool = False
    """Judge software devices (rxe, siw) as well: for test setups that have nothing else."""


class PortReadings(NamedTuple):
    """`ports`: of hardware devices. `software_devices`: names of rxe and siw devices, which no job should use."""

    ports: tuple[Port, ...]
    software_devices: tuple[str, ...]
    unreadable: tuple[Unreadable, ...]


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def device_names(host: Host) -> tuple[str, ...]:
    """Returns the names of all RDMA devices. That there are none counts only where /sys/class could be listed."""
    return host.entries(RDMA) if "infiniband" in host.entries("/sys/class") else ()


def read_ports(host: Host, ignore: Sequence[str] = (), judge_software: bool = False) -> PortReadings:
    """Reads the ports of the devices that match no pattern of `ignore`. Raises NotApplicable where there is provably no
    RDMA device to judge, Unknown where that is not certain."""
    names = device_names(host)
    if not names:
        _raise_no_device(host)
    software = () if judge_software else tuple(name for name in names if is_software_device(host, name))
    judged = [name for name in names if name not in software and not matches_any(name, ignore)]
    ports, unreadable = split_unreadable(port for name in judged for port in _device_ports(host, name))
    if not ports and not unreadable:
        raise NotApplicable(f"no RDMA hardware to judge, only {', '.join(names)}")
    return PortReadings(ports, software, unreadable)


def read_if_present(host: Host, path: str) -> str:
    """Reads a file that not every driver has; empty where there is none."""
    try:
        return host.read(path).strip()
    except NotFound:
        return ""


def is_software_device(host: Host, name: str) -> bool:
    try:
        return "/virtual/" in host.read_link(f"{RDMA}/{name}")
    except Unknown:  # a recording may hold folders in place of sysfs's links
        return False


def pci_path(host: Host, folder: str) -> tuple[str, ...]:
    """Returns the addresses of the bridges above the PCI device at `folder`, and its own: ("0000:15:01.0", ...,
    "0000:1a:00.0"); empty where it is no PCI device, or its place is not known."""
    try:
        parts = host.real_path(folder).split("/")
    except Unknown:
        return ()
    return tuple(part for part in parts if _ADDRESS.fullmatch(part))


def gpu_paths(host: Host) -> tuple[tuple[str, ...], ...]:
    return tuple(path for address in gpu_addresses(host) if (path := pci_path(host, f"{PCI}/{address}")))


def pci_address(host: Host, name: str) -> str:
    return (pci_path(host, f"{RDMA}/{name}/device") or ("",))[-1]


def _raise_no_device(host: Host) -> NoReturn:
    """Raises the reason why the machine has no RDMA device."""
    nics = read_nics(host)
    if not nics:
        raise NotApplicable("no RDMA device, and no NIC on the PCI bus that could be one")
    without = [nic for nic in nics if nic.infiniband]
    if without:
        raise Unknown(f"{without[0].address} has no RDMA device: see probe rdma_devices")
    listed = f"{nics[0].address} is" if len(nics) == 1 else f"{len(nics)} NICs are"
    raise NotApplicable(f"no RDMA device; {listed} for plain Ethernet")


def _device_ports(host: Host, name: str) -> Iterator[Port | Unreadable]:
    folder = f"{RDMA}/{name}"
    try:
        numbers = [int(number) for number in host.entries(f"{folder}/ports") if number.isdecimal()]
        model = read_if_present(host, f"{folder}/hca_type"), read_if_present(host, f"{folder}/board_id")
    except Unknown as error:
        yield Unreadable(str(error))
        return
    path = pci_path(host, f"{folder}/device")
    for number in sorted(numbers):
        try:
            yield _port(host, name, number, path, model)
        except Unknown as error:
            yield Unreadable(str(error))


def _port(host: Host, device: str, number: int, path: tuple[str, ...], model: tuple[str, str]) -> Port:
    address = path[-1] if path else ""
    folder = f"{RDMA}/{device}/ports/{number}"
    texts = {name: host.read(f"{folder}/{name}").strip() for name in ("state", "phys_state", "rate", "link_layer")}
    state, phys, rate = parse_state(texts["state"]), parse_state(texts["phys_state"]), parse_rate(texts["rate"])
    if state is None or phys is None:
        raise Unknown(f"{folder} has no state: {texts['state'][:40]!r}, {texts['phys_state'][:40]!r}")
    if rate is None:
        raise Unknown(f"{folder}/rate is no rate: {texts['rate'][:40]!r}")
    return Port(
        device=device,
        number=number,
        address=address,
        path=path,
        kind=PortKind(*model, texts["link_layer"], address.rpartition(".")[2]),
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
