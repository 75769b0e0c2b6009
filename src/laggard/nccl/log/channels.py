"""Parses channel lines: `Channel 00/0 : 1[1] -> 8[0] [receive] via NET/IB/0/GDRDMA`, NCCL 2.7 to 2.32.

Each rank carries the GPU's bus id (to 2.17) or its number (since 2.18) in brackets; `NET/IB/0(3)` goes through rank 3's
NIC (PXN). Parts `/KEY=VALUE` may follow, `/flush=None` since 2.31: any are accepted. Another part is not: a line that
is cut off within `/GDRDMA` would show that GPUDirect is off. Sources: src/transport/{p2p,shm,net,coll_net}.cc of the
release tags, and the format strings of the libraries of 2.31.2 and 2.32.3. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from laggard.nccl.log.model import Connection

MAX_PAIRS: Final = 64

_PAIR = re.compile(r"(\d{1,9})\[[^\]]*\] -> (\d{1,9})\[[^\]]*\](?: \[(send|receive)\])?")
_ONE_END = re.compile(r"(\d{1,9}) \[(send|receive)\]")  # COLLNET: the other end is a switch
_MORE = r"(?:/\w{1,40}=[^/\s]{0,80}){0,8}"
_P2P = re.compile(
    r"P2P/(direct pointer|common device|IPC|CUMEM|MNNVL|indirect)(?:/\d+\[[^\]]*\])?(?:/read)?(?:/CE)?" + _MORE
)
_SHM = re.compile(r"(?:direct shared memory|SHM(?:/(?:direct|CE|conn)){0,2})" + _MORE)
_NET = re.compile(r"(NET|COLLNET)/([^/]{1,80})/(\d{1,9})(?:\(\d+\))?(/GDRDMA(?:\(PCI\))?)?(?:/Shared)?" + _MORE)

_Key = tuple[str, str, int | None, str, bool]


def parse_channel(text: str) -> Connection | None:
    """The connection of one channel, from the text after `Channel NN : `; None for other text, or where it is cut
    off."""
    ends, via, transport = text.rpartition(" via ")
    if not via:
        return None
    pair = _PAIR.fullmatch(ends)
    one_end = None if pair else _ONE_END.fullmatch(ends)
    pairs: tuple[tuple[int, int], ...] = ()
    if pair:
        direction, pairs = pair[3] or "", ((int(pair[1]), int(pair[2])),)
    elif one_end:
        direction = one_end[2]
    else:
        return None
    if match := _NET.fullmatch(transport):
        return Connection(match[1], match[2], int(match[3]), direction, bool(match[4]), 1, pairs)
    if match := _P2P.fullmatch(transport):
        return Connection("P2P", match[1], None, direction, False, 1, pairs)
    return Connection("SHM", "", None, direction, False, 1, pairs) if _SHM.fullmatch(transport) else None


def merge(counts: Iterable[tuple[Connection, int]]) -> tuple[Connection, ...]:
    """Merges connections that differ in their pairs alone, each given with its number of channels. The order of the
    result does not depend on the order of the log's lines."""
    sums: dict[_Key, int] = {}
    pairs: dict[_Key, set[tuple[int, int]]] = {}
    for connection, count in counts:
        key: _Key = connection[:5]
        sums[key] = sums.get(key, 0) + count
        pairs.setdefault(key, set()).update(connection.pairs)
    keys = sorted(sums, key=_order)
    return tuple(Connection(*key, sums[key], tuple(sorted(pairs[key])[:MAX_PAIRS])) for key in keys)


def _order(key: _Key) -> tuple[str, str, int, str, bool]:
    transport, name, device, direction, gdr = key
    return transport, name, -1 if device is None else device, direction, gdr


def count_channels(connections: Iterable[Connection]) -> Mapping[str, int]:
    """The number of channels by transport, for people: {`NET/IB with GPUDirect`: 32, `P2P/CUMEM`: 16}."""
    total: dict[str, int] = {}
    for one in connections:
        label = "/".join(filter(None, (one.transport, one.name))) + (" with GPUDirect" if one.gdr else "")
        total[label] = total.get(label, 0) + one.channels
    return total
