"""An RDMA port as a value, and the formats of its files in sysfs (sysfs-class-infiniband)."""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.text.lazy_pattern import lazy_pattern

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
