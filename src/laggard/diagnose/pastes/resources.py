"""The formats `df`, `free, numactl -H` and `ulimit -a`: disks and memory that are used up, and a limit with which
RDMA cannot lock buffers.

/proc/meminfo and /proc/PID/limits are read too. Sources: procps (src/free.c), lfs of Lustre, numactl (numactl.c),
the kernel's Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.pastes.section import Section, paste_format
from laggard.diagnose.rules import patterns, table
from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact

_P: Final = patterns("paste_forms", "resources_")

_SAYS: Final = table("pastes").sections
MIN_WARNED_PERCENT: Final = 97
"""The share in use from which on a file system is nearly full."""
MAX_FINDINGS: Final = 16


class _Row(NamedTuple):
    device: str
    size: str
    available: str
    percent: int
    mount: str
    inodes: bool


def read_disks(section: Section) -> Iterator[Finding | Fact]:
    rows = [
        row
        for row in _rows(section.text)
        if not _P["image"].match(row.device) and not _P["not_of_jobs"].match(row.mount)
    ]
    yield Fact("fullest", {row.mount: f"{row.percent}%" for row in sorted(rows, key=lambda row: -row.percent)[:4]})
    full = [row for row in rows if row.percent >= MIN_WARNED_PERCENT]
    for row in full[:MAX_FINDINGS]:
        yield _disk_finding(row)


def _rows(text: str) -> Iterator[_Row]:
    inodes = in_table = False
    name = ""
    for line in text.split("\n")[:4096]:
        if _P["disks_head"].match(line):
            in_table, inodes = True, "nodes" in line
        elif in_table and (match := _P["row"].fullmatch(line)):
            yield _Row((match[1] or name).strip(), match[2], match[4], int(match[5]), match[6], inodes)
        name = line.strip()  # df of old breaks the line after a long name


def _disk_finding(row: _Row) -> Finding:
    is_full = row.percent >= 100 or row.available.rstrip("BKMGTPEkbi") in ("0", "0.0")
    kind = "shm" if row.mount == "/dev/shm" else "inodes" if row.inodes else "disk"
    told = "no inode left (too many files)" if row.inodes else f"no room left: {row.percent}% of {row.size} are in use"
    nearly = f"is nearly full: {row.percent}% of its {'inodes' if row.inodes else 'bytes'}"
    return _SAYS[f"full_{kind}"].found(
        {"filesystem": row.device, "size": row.size, "available": row.available, "percent": row.percent},
        Severity.CRITICAL if is_full else Severity.WARNING,
        mount=row.mount,
        told=f"has {told}" if is_full else nearly,
    )


DISKS: Final = paste_format("df", _P["disks_head"], read_disks)


MAX_SHARE_LEFT: Final = 0.02
"""The largest share of available memory that is critical: the kernel is about to kill processes."""
MIN_SHARED: Final = 0.3
"""The least share of memory in /dev/shm and the like that is named as the cause."""
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


def read_memory(section: Section) -> Iterator[Finding | Fact]:
    amounts = _amounts(section.text)
    total, available = amounts.get("total", 0.0), amounts.get("available")
    if total and available is not None:
        yield Fact("memory_available_share", round(available / total, 3))
        if available <= MAX_SHARE_LEFT * total:
            yield _used_up(total, available, amounts.get("shared", 0.0))
    yield from _nodes(section.text)


def _amounts(text: str) -> dict[str, float]:
    """Returns amounts by the names of `free`'s columns, in any unit: only their shares count."""
    fields = {name: float(value) for name, value in _P["field"].findall(text)}
    if "MemTotal" in fields and "MemAvailable" in fields:
        return {
            "total": fields["MemTotal"], "available": fields["MemAvailable"], "shared": fields.get("Shmem", 0.0)
        }  # fmt: skip
    columns, values = _P["columns"].search(text), _P["memory"].search(text)
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
    return _SAYS["memory_shared" if is_shared else "memory_used"].found(
        {"available_share": round(available / total, 4), "shared_share": round(shared / total, 4)},
        available=f"{available / total:.1%}",
        shared=f"{shared / total:.0%}",
    )


def _nodes(text: str) -> Iterator[Finding | Fact]:
    """Judges NUMA nodes that have CPUs: those without are GPUs' or memory cards', and may be empty."""
    shown: dict[str, dict[str, str]] = {}
    for node, what, value in _P["node"].findall(text)[:8192]:
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
            severity = Severity.WARNING if size else Severity.CRITICAL
            evidence = {"size_megabytes": size, "others_megabytes": usual}
            yield _SAYS["numa_node"].found(evidence, severity, node=node, size=size, usual=usual)


MEMORY: Final = paste_format("free, numactl -H", _P["memory_head"], read_memory)


MIN_LOCKED_BYTES: Final = 1 << 30
"""The least memory that a process may lock for RDMA: NCCL registers hundreds of MB for each GPU."""


def read_limits(section: Section) -> Iterator[Finding | Fact]:
    for match in list(_P["locked"].finditer(section.text))[:64]:
        limit = match[1] or match[2]
        yield Fact("locked_memory", limit)
        size = None if limit == "unlimited" else int(limit) * (1024 if match[1] else 1)
        if size is not None and size < MIN_LOCKED_BYTES:
            seen = _P["seen"].search(section.text) is not None
            severity = Severity.CRITICAL if seen else Severity.WARNING
            told = ": RDMA could not register memory" if seen else ""
            yield _SAYS["memlock"].found({"limit_bytes": size}, severity, size=size // 1024, told=told)


LIMITS: Final = paste_format("ulimit -a", _P["limits_head"], read_limits)
