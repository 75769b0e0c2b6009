"""RDMA devices and their ports as /sys/class/infiniband shows them, read once into values. Nothing is judged here.

A port that cannot be read is Unreadable, never taken for a good one, and the probe that needs it ends in Unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, NoReturn

from laggard.kit.words import lazy_pattern
from laggard.probes.errors import NotApplicable, Unknown, Unreadable, if_present, or_none, split_unreadable
from laggard.probes.host.host import Host
from laggard.probes.probe import Thresholds, matches_any
from laggard.probes.rdma.model.nics import ADDRESS, PCI, gpu_addresses, read_nics

RDMA: Final = "/sys/class/infiniband"
ACTIVE: Final = 4  # enum ib_port_state: 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE, 5 ACTIVE_DEFER
DISABLED: Final = 3
LINK_UP: Final = 5  # enum ib_port_phys_state: 1 Sleep, 2 Polling, 3 Disabled, 4 Training, 5 LinkUp, 6 ErrorRecovery

_STATE = lazy_pattern(r"(\d{1,2}): (\S.*)")
_RATE = lazy_pattern(r"(\d{1,6}(?:\.\d+)?) Gb/sec(?: \((\d{1,2})X[^)]*\))?")


class PortKind(NamedTuple):
    """Ports of one kind are peers: what most of them do is expected of the others. The PCI function number separates
    the two ports of a dual-port card, of which often only the first is cabled."""

    type: str
    board: str
    link_layer: str
    function: str


class Port(NamedTuple):
    device: str
    number: int
    address: str  # of the PCI device, or empty
    path: tuple[str, ...]  # of PCI addresses, from the root to the device
    kind: PortKind
    state: int
    state_text: str
    phys_state: int
    phys_text: str
    rate_gigabits: float
    lanes: int  # 0: not known
    rate_text: str
    virtual_function: bool  # of a physical function on this machine: it belongs to a guest

    @property
    def name(self) -> str:
        """The name that RDMA tools use: the device, with the port's number where it is not the first."""
        return self.device if self.number == 1 else f"{self.device}:{self.number}"

    @property
    def folder(self) -> str:
        return f"{RDMA}/{self.device}/ports/{self.number}"

    @property
    def active(self) -> bool:
        return self.state == ACTIVE

    @property
    def ethernet(self) -> bool:
        return self.kind.link_layer == "Ethernet"


def parse_state(text: str) -> tuple[int, str] | None:
    """Parses `4: ACTIVE`."""
    match = _STATE.fullmatch(text.strip())
    return (int(match[1]), match[2]) if match else None


def parse_rate(text: str) -> tuple[float, int] | None:
    """Parses `400 Gb/sec (4X NDR)` to gigabits a second and the number of lanes, 0 where it is not there."""
    match = _RATE.fullmatch(text.strip())
    return (float(match[1]), int(match[2] or 0)) if match else None


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


def is_software_device(host: Host, name: str) -> bool:
    link = or_none(host.read_link, f"{RDMA}/{name}")  # a recording may hold folders in place of sysfs's links
    return "/virtual/" in (link or "")


def pci_path(host: Host, folder: str) -> tuple[str, ...]:
    """Returns the addresses of the bridges above the PCI device at `folder`, and its own: ("0000:15:01.0", ...,
    "0000:1a:00.0"); empty where it is no PCI device, or its place is not known."""
    path = or_none(host.real_path, folder) or ""
    return tuple(part for part in path.split("/") if ADDRESS.fullmatch(part))


def gpu_paths(host: Host) -> tuple[tuple[str, ...], ...]:
    return tuple(path for address in gpu_addresses(host) if (path := pci_path(host, f"{PCI}/{address}")))


def pci_address(host: Host, name: str) -> str:
    return (pci_path(host, f"{RDMA}/{name}/device") or ("",))[-1]


def _raise_no_device(host: Host) -> NoReturn:
    """Raises the reason why the machine has no RDMA device."""
    nics = read_nics(host)
    if not nics:
        raise NotApplicable("no RDMA device, and no NIC on the PCI bus that could be one")
    without = [nic for nic in nics if nic.rdma_alone]
    if without:
        raise Unknown(f"{without[0].address} has no RDMA device: see probe rdma_devices")
    listed = f"{nics[0].address} is" if len(nics) == 1 else f"{len(nics)} NICs are"
    raise NotApplicable(f"no RDMA device; {listed} for plain Ethernet")


def _device_ports(host: Host, name: str) -> Iterator[Port | Unreadable]:
    folder = f"{RDMA}/{name}"
    try:
        numbers = [int(number) for number in host.entries(f"{folder}/ports") if number.isdecimal()]
        model = host.read_if_present(f"{folder}/hca_type"), host.read_if_present(f"{folder}/board_id")
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
        virtual_function=bool(address) and "physfn" in host.names(f"{RDMA}/{device}/device"),
    )


NET: Final = "/sys/class/net"
_IFF_UP: Final = 1
_HEADER_BYTES: Final = 96
"""The bytes that the kernel subtracts from an Ethernet MTU for RoCE: GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4
(iboe_get_mtu in include/rdma/ib_addr.h)."""
_IB_MTUS: Final = (4096, 2048, 1024, 512, 256)


class Netdev(NamedTuple):
    name: str
    operstate: str
    admin_up: bool
    mtu: int


def roce_path_mtu(mtu: int) -> int:
    """Returns the RoCE path MTU, in bytes, that an Ethernet MTU leaves room for; 0: none. It is computed as in the
    kernel, because the verbs' active_mtu is in no file of sysfs."""
    return next((size for size in _IB_MTUS if mtu - _HEADER_BYTES >= size), 0)


def netdev_name(host: Host, port: Port) -> str:
    """Returns the port's network device; empty where it has none. Raises Unknown where it cannot be read."""
    name = or_none(host.read, f"{port.folder}/gid_attrs/ndevs/0")
    if name is not None:  # else there is no entry (InfiniBand), or an empty one, which reads as EINVAL
        return name.strip()
    names = if_present(host.entries, f"{RDMA}/{port.device}/device/net") or ()
    matching = [name for name in names if (host.number(f"{NET}/{name}/dev_port") or 0) == port.number - 1]
    return matching[0] if matching else names[0] if len(names) == 1 else ""


def read_netdev(host: Host, name: str) -> Netdev:
    folder = f"{NET}/{name}"
    texts = {key: host.read(f"{folder}/{key}").strip() for key in ("operstate", "mtu")}
    if not texts["mtu"].isdecimal():
        raise Unknown(f"{folder}/mtu is no number: {texts['mtu'][:20]!r}")
    up = _admin_up(host.read_if_present(f"{folder}/flags"))
    return Netdev(name, texts["operstate"], up, int(texts["mtu"]))


def _admin_up(flags: str) -> bool:
    """Returns False only where the flags were read: to report that somebody set the device down is an accusation."""
    try:
        return bool(int(flags, 16) & _IFF_UP)
    except ValueError:
        return True


def has_been_up(host: Host, port: Port) -> bool:
    """Returns whether the port has had a link since its driver started: then it is cabled and no spare port."""
    name = or_none(netdev_name, host, port)
    ups = host.number(f"{NET}/{name}/carrier_up_count") if name else None
    return (ups or host.number(f"{port.folder}/counters/link_downed") or 0) > 0
