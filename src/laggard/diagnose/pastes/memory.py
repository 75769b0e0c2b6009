"""The format `free, numactl -H`: memory that is used up, and NUMA nodes without memory. /proc/meminfo is read too.

Sources: procps (src/free.c), numactl (numactl.c), the kernel's Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section
from laggard.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(
    r"^[^\S\n]+total\s+used\s+free\b.*$|^MemTotal:\s+\d+ kB|^available: \d+ nodes? \(", re.MULTILINE
)
_COLUMNS: Final = re.compile(r"^[^\S\n]+total\s+used\s+free\b.*$", re.MULTILINE)
_MEMORY: Final = re.compile(r"^Mem:\s+(.{1,300})$", re.MULTILINE)
_FIELD: Final = re.compile(r"^(MemTotal|MemAvailable|Shmem):\s+(\d{1,18}) kB", re.MULTILINE)
_NODE: Final = re.compile(r"^node (\d{1,4}) (cpus|size):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
MAX_SHARE_LEFT: Final = 0.02
"""The largest share of available memory that is critical: the kernel is about to kill processes."""
MIN_SHARED: Final = 0.3
"""The least share of memory in /dev/shm and the like that is named as the cause."""
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


def read(section: Section) -> Iterator[Finding | Fact]:
    amounts = _amounts(section.text)
    total, available = amounts.get("total", 0.0), amounts.get("available")
    if total and available is not None:
        yield Fact("memory_available_share", round(available / total, 3))
        if available <= MAX_SHARE_LEFT * total:
            yield _used_up(total, available, amounts.get("shared", 0.0))
    yield from _nodes(section.text)


def _amounts(text: str) -> dict[str, float]:
    """Returns amounts by the names of `free`'s columns, in any unit: only their shares count."""
    fields = {name: float(value) for name, value in _FIELD.findall(text)}
    if "MemTotal" in fields and "MemAvailable" in fields:
        return {
            "total": fields["MemTotal"], "available": fields["MemAvailable"], "shared": fields.get("Shmem", 0.0)
        }  # fmt: skip
    columns, values = _COLUMNS.search(text), _MEMORY.search(text)
    if not columns or not values:
        return {}
    amounts = dict(zip(columns[0].split(), map(_amount, values[1].split()), strict=False))
    if "available" not in amounts and {"free", "buffers", "cached"} <= amounts.keys():
        amounts["available"] = amounts["free"] + amounts["buffers"] + amounts["cached"]
    return amounts


def _amount(word: str) -> float:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,6})?)([KMGTP]?)i?B?", word)
    return float(match[1]) * _UNITS.get(match[2], 1) if match else 0.0


def _used_up(total: float, available: float, shared: float) -> Finding:
    is_shared = shared >= MIN_SHARED * total
    told = f"; {shared / total:.0%} are in shared memory (/dev/shm and tmpfs)" if is_shared else ""
    return finding(
        "HOST_MEMORY_LOW",
        "the host's memory",
        f"is used up: {available / total:.1%} are available{told}",
        severity=Severity.CRITICAL,
        evidence={"available_share": round(available / total, 4), "shared_share": round(shared / total, 4)},
        fix="Remove what dead jobs left in /dev/shm."
        if is_shared
        else "Look for what holds it: DataLoader workers, pinned or offloaded memory, a leak; end what is left over.",
        commands=("ls -lS /dev/shm | head", "ps -eo pid,rss,cmd --sort -rss | head"),
    )


def _nodes(text: str) -> Iterator[Finding | Fact]:
    """Judges NUMA nodes that have CPUs: those without are GPUs' or memory cards', and may be empty."""
    shown: dict[str, dict[str, str]] = {}
    for node, what, value in _NODE.findall(text)[:8192]:
        shown.setdefault(node, {})[what] = value
    sizes = {
        node: int(re.sub(r"\D", "", each["size"])[:15] or 0)
        for node, each in shown.items()
        if each.get("cpus") and "size" in each
    }
    if shown:
        yield Fact("numa_nodes_with_cpus", len(sizes))
    usual = majority(sizes.values()) or max(sizes.values(), default=0)
    for node, size in sizes.items():
        if len(sizes) > 1 and 2 * size < usual:
            yield _small_node(node, size, usual)


def _small_node(node: str, size: int, usual: int) -> Finding:
    return finding(
        "HOST_MEMORY_LOW",
        f"NUMA node {node}",
        f"has {size} MB of memory, others have {usual} MB",
        severity=Severity.CRITICAL if size == 0 else Severity.WARNING,
        evidence={"size_megabytes": size, "others_megabytes": usual},
        fix="Memory modules of this processor are missing, or were switched off after errors: look at the list of "
        "modules and at the firmware's log, and reseat or replace them.",
        commands=("dmidecode -t 17", "ipmitool sel elist"),
    )


MEMORY: Final = paste_format("free, numactl -H", _HEAD, read)
