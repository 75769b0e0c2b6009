"""The table that `nvidia-smi` prints without options, as values. Layouts: drivers to 418, which have two lines a GPU;
450 to 530, with a line for MIG; 535 and newer, with wider columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.probes.nvml.model import sysfs_bus_id

HEAD: Final = re.compile(r"^\| NVIDIA-SMI \S+ .*Driver Version: *([\w.]+)", re.MULTILINE)
_MAX_GPUS: Final = 1024
_FIRST = re.compile(
    r"\|\s*(?P<index>\d{1,4})\s+(?P<name>\S.*?)\s+(?P<persistence>On|Off|N/A|ERR!|Unk\w*)\s*"
    r"\|\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+(?P<display>\S+)\s*\|\s*(?P<ecc>.*?)\s*\|\s*$"
)
_CELSIUS = re.compile(r"\b(\d{1,3})C\b")
_PARTS_HEAD: Final = "| MIG devices:"
_PART = re.compile(r"\|\s*(\d{1,4})\s+\d+\s+\d+\s+\d+\s*\|[^|]*\|\s*\S+\s+(\d{1,9})\s*\|")
_PROCESSES_HEAD: Final = "| Processes:"


class TableGpu(NamedTuple):
    """A GPU's rows. `lines`: as they stand, at most three."""

    number: int
    name: str
    bus_id: str
    persistence: str
    ecc: str
    celsius: int | None
    lines: tuple[str, ...]

    @property
    def device(self) -> str:
        return f"GPU {self.number} ({self.bus_id})"

    @property
    def uncorrected(self) -> int:
        return int(self.ecc) if self.ecc.isascii() and self.ecc.isdigit() and len(self.ecc) < 20 else 0


class Table(NamedTuple):
    driver_version: str
    gpus: tuple[TableGpu, ...]
    uncorrected_of_parts: dict[int, int]
    """By index of a GPU in MIG mode: the uncorrected errors of its parts."""


def read_table(text: str) -> Table:
    head = HEAD.search(text)
    body, _, rest = text.partition(_PARTS_HEAD)
    gpus = tuple(_gpus(body.partition(_PROCESSES_HEAD)[0]))
    parts: dict[int, int] = {}
    for line in rest.splitlines() if rest else ():
        if line.startswith(_PROCESSES_HEAD):
            break
        if found := _PART.match(line):
            parts[int(found[1])] = parts.get(int(found[1]), 0) + int(found[2])
    return Table(head[1] if head else "", gpus, parts)


def _gpus(text: str) -> Iterator[TableGpu]:
    first: re.Match[str] | None = None
    lines: list[str] = []
    count = 0
    for line in (*text.splitlines(), "+"):
        found = _FIRST.match(line) if len(line) < 400 else None
        if first and (found or not line.startswith("|")):
            yield _gpu(first, lines)
            first, count = None, count + 1
        if found and count < _MAX_GPUS:
            first, lines = found, [line]
        elif first and len(lines) < 3:
            lines.append(line)


def _gpu(first: re.Match[str], lines: list[str]) -> TableGpu:
    celsius = _CELSIUS.search(lines[1]) if len(lines) > 1 else None
    return TableGpu(
        int(first["index"]),
        first["name"],
        sysfs_bus_id(first["bus"]),
        first["persistence"],
        first["ecc"],
        int(celsius[1]) if celsius else None,
        tuple(lines),
    )
