"""The transports that one rank's NCCL uses, as the training process itself reports them: a small value in its rank
file.

Standard library only. The training process writes it, the agent reads it, and each side bounds its size.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from types import NoneType
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from laggard.nccl.log.model import Communicator, NcclProcess

MAX_BYTES: Final = 4096
"""The most bytes that the JSON takes, in UTF-8."""

LOG_READ: Final = "read"
LOG_EMPTY: Final = "empty"
LOG_OF_THE_USER: Final = "user"
LOG_NONE: Final = "none"
LOG_STATES: Final = {
    LOG_READ: "NCCL's own log was read",
    LOG_EMPTY: "NCCL has written nothing yet",
    LOG_OF_THE_USER: "the user has set NCCL_DEBUG, whose log is not laggard's to read",
    LOG_NONE: "NCCL was not asked to log",
}
"""The words for what is known of NCCL's log, by `Transport.log`."""

_FORMAT: Final = 1
_KEPT_LONGEST: Final = (
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_IB_HCA",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
)
"""Variables that the agent's findings depend on: they are cut last."""
_MAX_TEXT_CHARACTERS = 160
_MAX_VALUE_CHARACTERS = 256


class Transport(NamedTuple):
    """The report of one rank on its NCCL."""

    nccl_version: str
    """The version of the loaded library, `2.27.5`; empty: none is loaded, or its version cannot be found."""
    version_source: str
    """`library`: the loaded library gave the version; `torch`: torch was built with it."""
    variables: tuple[tuple[str, str], ...]
    """The NCCL_* variables of the process's environment whose names laggard.nccl.variables knows, and no others."""
    uverbs: int | None
    """RDMA devices that the process holds open (descriptors of /dev/infiniband/uverbs*); None: cannot be counted."""
    log: str
    """A key of LOG_STATES."""
    process: NcclProcess
    """The process as NCCL's log shows it; empty unless `log` is `read`. Its host and pid are not in the JSON."""
    rank: int | None = None
    """The rank in the job, where the caller knows it; None: the rank in the process's largest communicator counts."""

    def to_json(self) -> str:
        """The value as JSON of at most MAX_BYTES. Where it is longer, the least useful parts are cut first, and the
        document's field `cut` is then true."""
        document = _document(self)
        for shorten in _SHORTENERS:
            text = json.dumps(document, separators=(",", ":"))  # ASCII: a character is a byte
            if len(text) <= MAX_BYTES:
                return text
            document["cut"] = True
            shorten(document)
        return json.dumps(document, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> Transport:
        """The value that to_json() wrote. Raises ValueError for any other text, with the reason in one line."""
        if len(text) > MAX_BYTES:
            raise ValueError(f"the transport document has {len(text)} bytes; at most {MAX_BYTES} are allowed")
        try:
            return _transport(json.loads(text))
        except (KeyError, TypeError, IndexError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(f"not a transport document: {type(error).__name__} {error}") from None


def _document(transport: Transport) -> dict[str, Any]:
    process = transport.process
    order = {name: place for place, name in enumerate(_KEPT_LONGEST)}
    variables = sorted(transport.variables, key=lambda one: (order.get(one[0], len(order)), one[0]))
    world = process.world
    return {
        "transport": _FORMAT,
        "version": transport.nccl_version[:32],
        "source": transport.version_source,
        "rank": transport.rank,
        "variables": [[name, value[:_MAX_VALUE_CHARACTERS]] for name, value in variables],
        "uverbs": transport.uverbs,
        "log": transport.log,
        "network": process.network[:80],
        "provider": process.provider[:80],
        "listed": [name[:32] for name in process.networks_tried],
        "devices": None if process.rdma_devices is None else [name[:64] for name in process.rdma_devices],
        "ring_gdr": process.ring_gdr,
        "started": process.started,
        "world": [world.identity[:24], *world[1:6], world.bus_id[:24], world.complete] if world else None,
        "ways": [[*way[:6], [list(pair) for pair in way.pairs[:8]]] for way in process.connections],
        "links": [list(link) for link in process.links if world and world.bus_id in link[:2]][:16],
        "hints": [[hint.kind, hint.text[:_MAX_TEXT_CHARACTERS], hint.times] for hint in process.hints],
        "read": [[name, value[:_MAX_VALUE_CHARACTERS]] for name, value in process.variables],
        "warnings": [text[:_MAX_TEXT_CHARACTERS] for text in process.warnings[:4]],
    }


def _drop_devices(document: dict[str, Any]) -> None:
    """Drops the NICs' numbers and the ranks; how many channels use which transport stays."""
    total: dict[tuple[Any, ...], int] = {}
    for transport, name, _, direction, gdr, channels, _ in document["ways"]:
        key = transport, name, direction, gdr
        total[key] = total.get(key, 0) + channels
    document["ways"] = [[*key[:2], None, *key[2:], channels, []] for key, channels in total.items()][:24]


def _truncate(name: str, most: int, length: int = _MAX_VALUE_CHARACTERS) -> Callable[[dict[str, Any]], None]:
    """A function that keeps `most` items of the document's list `name`, and `length` characters of each text."""

    def shorten(document: dict[str, Any]) -> None:
        document[name] = [_shorten(item, length) for item in (document[name] or ())[:most]]

    return shorten


def _shorten(item: Any, length: int) -> Any:
    if isinstance(item, str):
        return item[:length]
    return [_shorten(part, length) for part in item] if isinstance(item, list) else item


_SHORTENERS: Final = (
    _truncate("warnings", 1),
    _truncate("variables", 24, 64),
    _truncate("read", 24, 64),
    _truncate("listed", 4, 16),
    _truncate("devices", 8, 32),
    _truncate("hints", 6, 80),
    _truncate("variables", 12, 48),
    _truncate("read", 12, 48),
    _truncate("links", 0),
    _drop_devices,
    _truncate("warnings", 0),
    _truncate("read", 0),
    _truncate("ways", 8, 40),
    _truncate("variables", 6, 16),
    _truncate("devices", 1, 16),
    _truncate("hints", 2, 20),
    _truncate("variables", 0),
    _truncate("listed", 0),
    _truncate("ways", 0),
)
"""The ways to shorten the document. They are applied in this order until the document fits. After the last one it fits,
whatever the characters."""


def _transport(document: Any) -> Transport:
    if document["transport"] != _FORMAT:
        raise ValueError(f"a transport document of format {document['transport']!r}; this laggard reads {_FORMAT}")
    log = _read(str, document["log"])
    if log not in LOG_STATES:
        raise ValueError(f"a transport document with the unknown log state {log[:20]!r}")
    world = document["world"]
    shown = {name: _read(kind, document[_KEYS.get(name, name)]) for name, kind in _kinds(NcclProcess) if name in _SHOWN}
    process = NcclProcess("", 0, communicators=(_read(Communicator, world),) if world else (), **shown)
    return Transport(
        process.version,
        _read(str, document["source"]),
        _read(_Pairs, document["variables"]),
        _read(int | None, document["uverbs"]),
        log,
        process,
        _read(int | None, document["rank"]),
    )


_Pairs = tuple[tuple[str, str], ...]
_KEYS: Final = {"networks_tried": "listed", "rdma_devices": "devices", "variables": "read", "connections": "ways"}
"""The document's names of fields of NcclProcess, where they have others there."""

_SHOWN: Final = (*_KEYS, "version", "network", "provider", "ring_gdr", "links", "hints", "warnings", "started")


@functools.cache
def _kinds(record: type) -> tuple[tuple[str, Any], ...]:
    return tuple(get_type_hints(record).items())


def _read(kind: Any, value: Any) -> Any:
    """`value` as a `kind`: a NamedTuple or a tuple comes as a list. Raises TypeError unless what is in it is exactly of
    its type: a bool, which Python takes for an int, is no int."""
    if kind in (str, int, bool):
        if type(value) is not kind:
            raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
        return value
    parts = get_args(kind)
    if NoneType in parts:
        return None if value is None else _read(parts[0], value)
    if parts[1:] == (...,):
        return tuple(_read(parts[0], each) for each in value)
    if parts:
        return tuple(_read(part, each) for part, each in zip(parts, value, strict=True))
    return kind(*(_read(part, each) for (_, part), each in zip(_kinds(kind), value, strict=True)))
