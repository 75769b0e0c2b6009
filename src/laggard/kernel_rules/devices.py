"""Links of network devices that went down and came up. The rules for NICs and PCIe devices are in devices.ini.

Sources: Linux, drivers/net/ethernet/mellanox/mlx5/core/{events,en_main}.c, drivers/net/ethernet/broadcom/bnxt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from laggard.kit.words import lazy_pattern

LINK: Final = lazy_pattern(
    r"(?:(\S{1,40} [0-9a-f:.]{7,12}) (\S{1,40}): (?:(?:NIC )?Link (?:is )?|Port: \d+ Link )"
    r"|^((?:eth|en|ib|hsn)[\w.-]{1,14}): )(down|up|active|(?:lost|gained) carrier)\b",
    re.IGNORECASE,
)
"""By a NIC's driver, or by systemd-networkd, which has no driver's name and tells of containers' interfaces as well."""
_STARTED: Final = lazy_pattern(r"(mlx5_core [0-9a-f:.]{12}): firmware version: ")


class LinkChange(msgspec.Struct, frozen=True):
    """`driver`: with the PCI address. `device`: the network device's name. `seconds`: after boot, where it is told."""

    driver: str
    device: str
    down: bool
    seconds: float | None
    text: str


def link_changes(messages: Iterable[tuple[float | None, str]]) -> Iterator[LinkChange]:
    """Those of links that were up: a link that is down since its driver's start has no cable. `messages`: seconds and
    text of each."""
    known: set[tuple[str, str]] = set()
    started: set[str] = set()
    for seconds, text in messages:
        if ("ink " in text or " carrier" in text) and (match := LINK.search(text)):
            driver, device, state = match[1] or "", match[2] or match[3], match[4]
            down = state.lower() in ("down", "lost carrier")
            if not down or (driver, device) in known or driver not in started:
                known.add((driver, device))
                yield LinkChange(driver, device, down, seconds, text)
        elif "firmware version: " in text and (begun := _STARTED.search(text)):
            started.add(begun[1])
