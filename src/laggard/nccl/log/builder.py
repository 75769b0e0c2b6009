"""Collects what the lines of one process show. Bounded: a process that logs forever takes no more memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from laggard.nccl.log.channels import merge
from laggard.nccl.log.model import Communicator, Connection, Hint, NcclProcess, SlowTransfers

_MAX_CHANNEL_LINES: Final = 2048
"""Different channel lines of one process. Further ones are counted without their pair of ranks."""
_MAX_COMMUNICATORS = 64
_MAX_VARIABLES = 128
_MAX_WARNINGS = 16
_MAX_LINKS = 1024
_MAX_NAMES = 16
_MAX_DIAGNOSTICS = 256
_MAX_DEVICES = 64
_MAX_TEXT_CHARACTERS = 300
_FIXED_FIELDS = ("rank", "ranks", "identity")
"""Fields of a communicator that do not change while it exists."""


class ProcessBuilder:
    """One process while its lines come in. The parsers of messages.py call its methods; build() returns the value."""

    def __init__(self, host: str, pid: int) -> None:
        self.host, self.pid = host, pid
        self.version = ""
        self.network = ""
        self.provider = ""
        self.libfabric_plugin: tuple[int, int] | None = None
        self.protocol = ""
        self.protocol_set_by = ""
        self.started = False
        self.hint_lines = 0
        self.lines = 0
        self.ring_gdr: bool | None = None
        self.rdma_devices: tuple[str, ...] | None = None
        self.variables: dict[str, str] = {}
        self.links: dict[tuple[str, str], str] = {}
        self.channel_lines: dict[str, int] = {}
        """The number of times that each channel line came, by its text without the channel's number."""
        self._connections: dict[str, Connection] = {}
        self._without_pairs: dict[Connection, int] = {}
        self._plugins: dict[str, None] = {}
        self._networks_tried: dict[str, None] = {}
        self._communicators: dict[str, Communicator] = {}
        self._hints: dict[str, tuple[str, int]] = {}
        self._warnings: dict[str, None] = {}
        self._slow: dict[tuple[str, bool], SlowTransfers] = {}
        self._diagnostics: dict[str, None] = {}
        self._replaced = 0

    def add_channel(self, text: str, connection: Connection) -> None:
        """Adds a channel line whose text is not in `channel_lines`."""
        if len(self.channel_lines) < _MAX_CHANNEL_LINES:
            self.channel_lines[text] = 1
            self._connections[text] = connection
        else:
            without_pair = connection._replace(pairs=())
            self._without_pairs[without_pair] = self._without_pairs.get(without_pair, 0) + 1

    def add_plugin(self, name: str) -> None:
        if len(self._plugins) < _MAX_NAMES:
            self._plugins[name[:_MAX_TEXT_CHARACTERS]] = None

    def add_network_tried(self, network: str) -> None:
        if len(self._networks_tried) < _MAX_NAMES:
            self._networks_tried[network[:_MAX_TEXT_CHARACTERS]] = None

    def set_variable(self, name: str, value: str) -> None:
        if len(self.variables) < _MAX_VARIABLES:
            self.variables[name] = value[:_MAX_TEXT_CHARACTERS]

    def set_link(self, one: str, other: str, distance: str) -> None:
        if len(self.links) < _MAX_LINKS:
            self.links[one, other] = distance

    def add_hint(self, kind: str, text: str) -> None:
        self.hint_lines += 1
        first, count = self._hints.get(kind, (text[:_MAX_TEXT_CHARACTERS], 0))
        self._hints[kind] = first, count + 1

    def add_warning(self, text: str) -> None:
        if len(self._warnings) < _MAX_WARNINGS:
            self._warnings[text[:_MAX_TEXT_CHARACTERS]] = None

    def add_slow_transfer(self, device: str, stalled: bool, nanoseconds: int, text: str) -> None:
        before = self._slow.get((device, stalled)) or SlowTransfers(device, stalled, 0, 0, text[:_MAX_TEXT_CHARACTERS])
        if before.lines or len(self._slow) < _MAX_DEVICES:
            longest = max(before.longest_ns, nanoseconds)
            self._slow[device, stalled] = before._replace(lines=before.lines + 1, longest_ns=longest)

    def add_diagnostic(self, text: str) -> None:
        if len(self._diagnostics) < _MAX_DIAGNOSTICS:
            self._diagnostics[text[:_MAX_TEXT_CHARACTERS]] = None

    def update_communicator(self, pointer: str, fields: Mapping[str, Any]) -> None:
        """Adds what one line shows of a communicator, as fields of Communicator. NCCL may use a pointer again for
        another communicator."""
        before = self._communicators.get(pointer)
        if before is not None and any(_differs(getattr(before, name), fields.get(name)) for name in _FIXED_FIELDS):
            self._replaced += 1
            self._communicators[f"{pointer}#{self._replaced}"] = before
            before = None
        self._communicators[pointer] = (before or Communicator("", 0, 0))._replace(**fields)
        if len(self._communicators) > _MAX_COMMUNICATORS:  # the smallest tells least about the job
            del self._communicators[min(self._communicators, key=lambda one: self._communicators[one].ranks)]

    def build(self) -> NcclProcess:
        """The process as far as its lines have come in."""
        counted = [(connection, self.channel_lines[text]) for text, connection in self._connections.items()]
        return NcclProcess(
            host=self.host,
            pid=self.pid,
            version=self.version,
            network=self.network,
            provider=self.provider,
            libfabric_plugin=self.libfabric_plugin,
            protocol=self.protocol,
            protocol_set_by=self.protocol_set_by,
            plugins=tuple(self._plugins),
            networks_tried=tuple(self._networks_tried),
            rdma_devices=self.rdma_devices,
            variables=tuple(sorted(self.variables.items())),
            communicators=tuple(self._communicators.values()),
            connections=merge([*counted, *self._without_pairs.items()]),
            ring_gdr=self.ring_gdr,
            links=tuple((one, other, distance) for (one, other), distance in self.links.items()),
            hints=tuple(Hint(kind, *first_and_count) for kind, first_and_count in self._hints.items()),
            warnings=tuple(self._warnings),
            slow_transfers=tuple(self._slow.values()),
            diagnostics=tuple(self._diagnostics),
            started=self.started,
        )


def _differs(before: object, now: object) -> bool:
    """Whether both values are known and they are not the same."""
    return before not in ("", None) and now is not None and now != before
