"""How much each client of a server took of late, so that at a limit those give way who took the most."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import socket
import time
from typing import Final

from laggard.kit.address import ip_of

HALF_LIFE_SECONDS: Final = 5.0
MAX_ADDRESSES: Final = 8192
"""The most addresses that are remembered. Beyond them, those that took the least are forgotten."""

_NOTHING: Final = 0.01
"""The amount that is as good as nothing, so that the order of arrival decides among all who took that little."""

_IPV6_PREFIX: Final = 64

OWN_MACHINE: Final = "127.0.0.0/8"
"""The client that all are who connect from this machine."""


class Shares:
    """The sums of what was added for each address, half of it gone after each HALF_LIFE_SECONDS."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[float, float]] = {}  # by address: how much, and when (monotonic seconds)

    def of(self, address: str, now: float | None = None) -> float:
        """The sum for `address`, 0 where that is next to nothing."""
        amount, at = self._taken.get(address, (0.0, 0.0))
        left = _decayed(amount, at, time.monotonic() if now is None else now)
        return left if left > _NOTHING else 0.0

    def add(self, address: str, amount: float, now: float | None = None) -> float:
        """Adds `amount`, and returns what `address` had taken before."""
        now = time.monotonic() if now is None else now
        before = self.of(address, now)
        self._taken[address] = (before + amount, now)
        if len(self._taken) > MAX_ADDRESSES:
            self._forget(now)
        return before

    def _forget(self, now: float) -> None:
        most = sorted(self._taken, key=lambda each: self.of(each, now), reverse=True)[: MAX_ADDRESSES // 2]
        self._taken = {each: self._taken[each] for each in most}


def _decayed(amount: float, at: float, now: float) -> float:
    return float(amount * 0.5 ** ((now - at) / HALF_LIFE_SECONDS))


def is_of_own_machine(connection: socket.socket, address: str) -> bool:
    """Whether an accepted connection, which came from `address`, is of this machine. Each of its users may take 16
    million addresses of the loopback interface, and is with each as rare as others are: they are to count as one."""
    with contextlib.suppress(OSError, ValueError):  # it is gone already; or the address is of no kind that is known
        return connection.getsockname()[0] == address or ipaddress.ip_address(client_of(address)).is_loopback
    return False


@functools.lru_cache(MAX_ADDRESSES)
def client_of(address: str) -> str:
    """The client that an address stands for: of IPv6 a network of 64 bits, whose addresses one machine may all take."""
    found = ip_of(address) if ":" in address else None
    if found is None:
        return address
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((int(found), _IPV6_PREFIX), strict=False).network_address)
