"""What is known of one process while its lines come in. Bounded: a process that logs forever takes no more memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from laggard.nccl.log.channels import merged
from laggard.nccl.log.model import Communicator, Hint, Process, Way

MOST_CHANNELS: Final = 2048
"""Different channel lines of one process; what comes after them is counted without its pair."""
_MOST_COMMUNICATORS = 64
_MOST_VARIABLES = 128
_MOST_WARNINGS = 16
_MOST_LINKS = 1024
_MOST_NAMES = 16
_MOST_TEXT = 300
_SAME = ("rank", "ranks", "identity")


class Draft:
    """Mutable; the forms write into it, `process()` is its value."""

    def __init__(self, host: str, pid: int) -> None:
        self.host, self.pid = host, pid
        self.version = ""
        self.network = ""
        self.provider = ""
        self.started = False
        self.hinted = 0
        self.lines = 0
        self.ring_gdr: bool | None = None
        self.rdma_devices: tuple[str, ...] | None = None
        self.variables: dict[str, str] = {}
        self.links: dict[tuple[str, str], str] = {}
        self.channel_lines: dict[str, int] = {}
        """By the text of the line without its number: how often, and by `ways` what it means."""
        self._ways: dict[str, Way | None] = {}
        self._further: dict[Way, int] = {}
        self._plugins: dict[str, None] = {}
        self._listed: dict[str, None] = {}
        self._communicators: dict[str, Communicator] = {}
        self._hints: dict[str, tuple[str, int]] = {}
        self._warnings: dict[str, None] = {}
        self._serial = 0

    def channel(self, text: str, way: Way) -> None:
        """A channel line that was not seen before."""
        if len(self.channel_lines) < MOST_CHANNELS:
            self.channel_lines[text] = 1
            self._ways[text] = way
        else:
            alone = way._replace(pairs=())
            self._further[alone] = self._further.get(alone, 0) + 1

    def plugin(self, name: str) -> None:
        if len(self._plugins) < _MOST_NAMES:
            self._plugins[name[:_MOST_TEXT]] = None

    def listed(self, network: str) -> None:
        if len(self._listed) < _MOST_NAMES:
            self._listed[network[:_MOST_TEXT]] = None

    def variable(self, name: str, value: str) -> None:
        if len(self.variables) < _MOST_VARIABLES:
            self.variables[name] = value[:_MOST_TEXT]

    def link(self, one: str, other: str, distance: str) -> None:
        if len(self.links) < _MOST_LINKS:
            self.links[one, other] = distance

    def hint(self, kind: str, text: str) -> None:
        self.hinted += 1
        first, count = self._hints.get(kind, (text[:_MOST_TEXT], 0))
        self._hints[kind] = first, count + 1

    def warning(self, text: str) -> None:
        if len(self._warnings) < _MOST_WARNINGS:
            self._warnings[text[:_MOST_TEXT]] = None

    def communicator(self, pointer: str, known: Mapping[str, Any]) -> None:
        """What one line says of a communicator, by Communicator's fields. A pointer may come back as another one."""
        before = self._communicators.get(pointer)
        if before is not None and any(_differs(getattr(before, name), known.get(name)) for name in _SAME):
            self._serial += 1
            self._communicators[f"{pointer}#{self._serial}"] = before
            before = None
        self._communicators[pointer] = (before or Communicator("", 0, 0))._replace(**known)
        if len(self._communicators) > _MOST_COMMUNICATORS:  # the smallest says least of the job
            del self._communicators[min(self._communicators, key=lambda one: self._communicators[one].ranks)]

    def process(self) -> Process:
        counted = [(way, self.channel_lines[text]) for text, way in self._ways.items() if way]
        return Process(
            host=self.host,
            pid=self.pid,
            version=self.version,
            network=self.network,
            provider=self.provider,
            plugins=tuple(self._plugins),
            listed=tuple(self._listed),
            rdma_devices=self.rdma_devices,
            variables=tuple(sorted(self.variables.items())),
            communicators=tuple(self._communicators.values()),
            ways=merged([*counted, *self._further.items()]),
            ring_gdr=self.ring_gdr,
            links=tuple((one, other, distance) for (one, other), distance in self.links.items()),
            hints=tuple(Hint(kind, *said) for kind, said in self._hints.items()),
            warnings=tuple(self._warnings),
            started=self.started,
        )


def _differs(known: object, said: object) -> bool:
    """Whether a line says something else of what is known already."""
    return known not in ("", None) and said is not None and said != known
