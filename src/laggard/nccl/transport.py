"""How one rank's NCCL talks, as the training process itself tells it: a small value that fits into its rank file.

Standard library only: the training process writes it, the agent reads it, and neither trusts the other's size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from laggard.nccl.log.model import HINTS, Communicator, Hint, Process, Way

MOST_BYTES: Final = 4096
"""Of the JSON, in UTF-8."""

LOG_READ: Final = "read"
LOG_EMPTY: Final = "empty"
LOG_OF_THE_USER: Final = "user"
LOG_NONE: Final = "none"
LOGS: Final = {
    LOG_READ: "NCCL's own log was read",
    LOG_EMPTY: "NCCL has written nothing yet",
    LOG_OF_THE_USER: "the user has set NCCL_DEBUG, whose log is not laggard's to read",
    LOG_NONE: "NCCL was not asked to log",
}

_FORM: Final = 1
_FIRST: Final = (
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_IB_HCA",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
)
"""What the judgement asks for is cut last."""
_TEXT = 160
_VALUE = 256


class Transport(NamedTuple):
    nccl_version: str
    """Of the library that is loaded, `2.27.5`; empty: none is, or it cannot be told."""
    version_source: str
    """`library`: the loaded library said so; `torch`: what torch was built with."""
    variables: tuple[tuple[str, str], ...]
    """NCCL_* of the process's environment, of names that are known (src/laggard/nccl/variables.py) and nothing else."""
    uverbs: int | None
    """RDMA devices that the process holds open (descriptors of /dev/infiniband/uverbs*); None: cannot be counted."""
    log: str
    """One of LOGS."""
    process: Process
    """What NCCL's log says; empty unless `log` is `read`. Its host and pid are not carried."""
    rank: int | None = None
    """The job's, as the caller knows it; None: that of its largest communicator."""

    def to_json(self) -> str:
        """At most MOST_BYTES: what says least is cut first, and `cut` is then true."""
        document = _document(self)
        for shorten in _SHORTENERS:
            text = json.dumps(document, separators=(",", ":"))  # ASCII: a character is a byte
            if len(text) <= MOST_BYTES:
                return text
            document["cut"] = True
            shorten(document)
        return json.dumps(document, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> Transport:
        """Raises ValueError, with what is wrong in one line, for anything that to_json() does not write."""
        if len(text) > MOST_BYTES:
            raise ValueError(f"a transport of {len(text)} bytes; {MOST_BYTES} are the most")
        try:
            return _transport(json.loads(text))
        except (KeyError, TypeError, IndexError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(f"no transport: {type(error).__name__} {error}") from None


def _document(transport: Transport) -> dict[str, Any]:
    process = transport.process
    order = {name: place for place, name in enumerate(_FIRST)}
    variables = sorted(transport.variables, key=lambda one: (order.get(one[0], len(order)), one[0]))
    world = process.world
    return {
        "transport": _FORM,
        "version": transport.nccl_version[:32],
        "source": transport.version_source,
        "rank": transport.rank,
        "variables": [[name, value[:_VALUE]] for name, value in variables],
        "uverbs": transport.uverbs,
        "log": transport.log,
        "network": process.network[:80],
        "provider": process.provider[:80],
        "listed": [name[:32] for name in process.listed],
        "devices": None if process.rdma_devices is None else [name[:64] for name in process.rdma_devices],
        "ring_gdr": process.ring_gdr,
        "started": process.started,
        "world": [world.identity[:24], *world[1:6], world.bus_id[:24], world.complete] if world else None,
        "ways": [[*way[:6], [list(pair) for pair in way.pairs[:8]]] for way in process.ways],
        "links": [list(link) for link in process.links if world and world.bus_id in link[:2]][:16],
        "hints": [[hint.kind, hint.text[:_TEXT], hint.times] for hint in process.hints],
        "read": [[name, value[:_VALUE]] for name, value in process.variables],
        "warnings": [text[:_TEXT] for text in process.warnings[:4]],
    }


def _without_devices(document: dict[str, Any]) -> None:
    """The NICs' numbers and the ranks; how much goes which way stays."""
    total: dict[tuple[Any, ...], int] = {}
    for transport, name, _, direction, gdr, channels, _ in document["ways"]:
        key = transport, name, direction, gdr
        total[key] = total.get(key, 0) + channels
    document["ways"] = [[*key[:2], None, *key[2:], channels, []] for key, channels in total.items()][:24]


def _cut(name: str, most: int, length: int = _VALUE) -> Callable[[dict[str, Any]], None]:
    def shorten(document: dict[str, Any]) -> None:
        document[name] = [_short(item, length) for item in (document[name] or ())[:most]]

    return shorten


def _short(item: Any, length: int) -> Any:
    if isinstance(item, str):
        return item[:length]
    return [_short(part, length) for part in item] if isinstance(item, list) else item


_SHORTENERS: Final = (
    _cut("warnings", 1),
    _cut("variables", 24, 64),
    _cut("read", 24, 64),
    _cut("listed", 4, 16),
    _cut("devices", 8, 32),
    _cut("hints", 6, 80),
    _cut("variables", 12, 48),
    _cut("read", 12, 48),
    _cut("links", 0),
    _without_devices,
    _cut("warnings", 0),
    _cut("read", 0),
    _cut("ways", 8, 40),
    _cut("variables", 6, 16),
    _cut("devices", 1, 16),
    _cut("hints", 2, 20),
    _cut("variables", 0),
    _cut("listed", 0),
    _cut("ways", 0),
)
"""In this order, until it fits; after the last it does, whatever the characters."""


def _transport(document: Any) -> Transport:
    if document["transport"] != _FORM:
        raise ValueError(f"a transport of form {document['transport']!r}; this laggard reads {_FORM}")
    log = _text(document["log"])
    if log not in LOGS:
        raise ValueError(f"a transport with the log {log[:20]!r}")
    devices = document["devices"]
    world = document["world"]
    process = Process(
        host="",
        pid=0,
        version=_text(document["version"]),
        network=_text(document["network"]),
        provider=_text(document["provider"]),
        listed=tuple(map(_text, document["listed"])),
        rdma_devices=None if devices is None else tuple(map(_text, devices)),
        variables=_pairs(document["read"]),
        communicators=(_world(world),) if world else (),
        ways=tuple(map(_way, document["ways"])),
        ring_gdr=_optional(document["ring_gdr"], bool),
        links=tuple((_text(one), _text(other), _text(distance)) for one, other, distance in document["links"]),
        hints=tuple(_hint(*hint) for hint in document["hints"]),
        warnings=tuple(map(_text, document["warnings"])),
        started=_a(document["started"], bool),
    )
    return Transport(
        process.version,
        _text(document["source"]),
        _pairs(document["variables"]),
        _optional(document["uverbs"], int),
        log,
        process,
        _optional(document["rank"], int),
    )


def _world(fields: Any) -> Communicator:
    identity, rank, ranks, nodes, local, device, bus, complete = fields
    return Communicator(
        _text(identity),
        _a(rank, int),
        _a(ranks, int),
        _optional(nodes, int),
        _optional(local, int),
        _optional(device, int),
        _text(bus),
        _a(complete, bool),
    )


def _way(fields: Any) -> Way:
    transport, name, device, direction, gdr, channels, pairs = fields
    return Way(
        _text(transport),
        _text(name),
        _optional(device, int),
        _text(direction),
        _a(gdr, bool),
        _a(channels, int),
        tuple((_a(one, int), _a(other, int)) for one, other in pairs),
    )


def _hint(kind: Any, text: Any, times: Any) -> Hint:
    if kind not in HINTS:  # of a newer laggard
        kind = _text(kind)
    return Hint(kind, _text(text), _a(times, int))


def _pairs(rows: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((_text(name), _text(value)) for name, value in rows)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in place of text")
    return value


def _a(value: Any, kind: type) -> Any:
    """bool is an int to Python, and is none here."""
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _optional(value: Any, kind: type) -> Any:
    return None if value is None else _a(value, kind)
