"""NCCL_IB_HCA: which RDMA devices the job is told to use. The forms are NCCL's (user guide, NCCL_IB_HCA):
`mlx5_0,mlx5_1:1`, names as prefixes; `=` in front: exact names; `^`: all but these."""

from __future__ import annotations

from typing import NamedTuple

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host

_NAME = "NCCL_IB_HCA"


class Choice(NamedTuple):
    text: str
    where: str
    names: tuple[str, ...]
    exact: bool
    excludes: bool

    def absent(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """The names that match no device. That an excluded device is not there is no fault."""
        if self.excludes:
            return ()
        return tuple(name for name in self.names if not any(self._matches(name, device) for device in devices))

    def _matches(self, name: str, device: str) -> bool:
        return device == name if self.exact else device.startswith(name)


def parse_choice(text: str, where: str) -> Choice | None:
    """None where it names nothing."""
    rest = text.strip()
    excludes = rest.startswith("^")
    rest = rest.removeprefix("^")
    exact = rest.startswith("=")
    rest = rest.removeprefix("=")
    names = tuple(name for part in rest.split(",") if (name := part.strip().partition(":")[0]))
    return Choice(text.strip(), where, names, exact, excludes) if names else None


def hca_choice(host: Host) -> Choice | None:
    """Of the job's environment, where laggard runs in one, else of the machine's configuration file."""
    try:
        text = host.environ().get(_NAME, "")
    except Unknown:
        text = ""
    if text:
        return parse_choice(text, "environment")
    try:
        lines = host.read("/etc/nccl.conf").splitlines()
    except Unknown:
        return None
    values = [line.partition("=")[2] for line in lines if line.partition("=")[0].strip() == _NAME]
    return parse_choice(values[-1], "/etc/nccl.conf") if values else None
