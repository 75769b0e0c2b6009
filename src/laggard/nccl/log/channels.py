"""Channel lines: `Channel 00/0 : 1[1] -> 8[0] [receive] via NET/IB/0/GDRDMA`, NCCL 2.7 to 2.30. Standard library only.

Ranks carry the GPU's bus id (to 2.17) or its number (since 2.18) in brackets; `NET/IB/0(3)` goes by way of rank 3's
NIC (PXN). Sources: src/transport/{p2p,shm,net,coll_net}.cc of the release tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from laggard.nccl.log.model import Way

MOST_PAIRS: Final = 64

_PAIR = re.compile(r"(\d{1,9})\[[^\]]*\] -> (\d{1,9})\[[^\]]*\](?: \[(send|receive)\])?")
_ALONE = re.compile(r"(\d{1,9}) \[(send|receive)\]")  # COLLNET: the other end is a switch
_P2P = re.compile(r"P2P/(direct pointer|common device|IPC|CUMEM|MNNVL|indirect)(?:/\d+\[[^\]]*\])?(?:/read)?(?:/CE)?")
_SHM = re.compile(r"direct shared memory|SHM(?:/(?:direct|CE|conn)){0,2}")
_NET = re.compile(r"(NET|COLLNET)/([^/]{1,80})/(\d{1,9})(?:\(\d+\))?(/GDRDMA(?:\(PCI\))?)?(?:/Shared)?")

_Key = tuple[str, str, int | None, str, bool]


def read_way(text: str) -> Way | None:
    """One channel from what follows `Channel NN : `; None where it is none, or is cut off."""
    ends, via, how = text.rpartition(" via ")
    if not via:
        return None
    pair = _PAIR.fullmatch(ends)
    alone = None if pair else _ALONE.fullmatch(ends)
    pairs: tuple[tuple[int, int], ...] = ()
    if pair:
        direction, pairs = pair[3] or "", ((int(pair[1]), int(pair[2])),)
    elif alone:
        direction = alone[2]
    else:
        return None
    if match := _NET.fullmatch(how):
        return Way(match[1], match[2], int(match[3]), direction, bool(match[4]), 1, pairs)
    if match := _P2P.fullmatch(how):
        return Way("P2P", match[1], None, direction, False, 1, pairs)
    return Way("SHM", "", None, direction, False, 1, pairs) if _SHM.fullmatch(how) else None


def merged(counts: Iterable[tuple[Way, int]]) -> tuple[Way, ...]:
    """Ways of one kind as one, in an order that does not depend on the order of the lines."""
    sums: dict[_Key, int] = {}
    pairs: dict[_Key, set[tuple[int, int]]] = {}
    for way, count in counts:
        key: _Key = way[:5]
        sums[key] = sums.get(key, 0) + count
        pairs.setdefault(key, set()).update(way.pairs)
    return tuple(Way(*key, sums[key], tuple(sorted(pairs[key])[:MOST_PAIRS])) for key in sorted(sums, key=_order))


def _order(key: _Key) -> tuple[str, str, int, str, bool]:
    transport, name, device, direction, gdr = key
    return transport, name, -1 if device is None else device, direction, gdr


def channels(ways: Iterable[Way]) -> Mapping[str, int]:
    """How many channels go which way, for people: {`NET/IB with GPUDirect`: 32, `P2P/CUMEM`: 16}."""
    total: dict[str, int] = {}
    for way in ways:
        label = "/".join(filter(None, (way.transport, way.name))) + (" with GPUDirect" if way.gdr else "")
        total[label] = total.get(label, 0) + way.channels
    return total
