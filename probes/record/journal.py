"""The content of a recording beside files: a journal that probes' processes write line by line, and the documents that
are made of it when they have ended."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from laggard import wire
from laggard.model import Finding
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import FACTS_PATH, PFC_PATH, REFUSED_PATH, REPLIES_PATH
from laggard.probes.probe import Fact, Probe, Thresholds

NOT_RECORDED: Final = "not recorded"
_JOURNAL: Final = "/laggard/.notes"


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """One answer of the machine. `kind`: file_system, usage, clock, environ, time, pfc or reply, with the answer as
    JSON in `value`; error, where the call `key` failed, and refused, where `key` could not be read, with the kernel's
    message; empty, where the file `key` really is empty."""

    kind: str
    key: str
    value: str


def journal_path(folder: str, pid: int) -> str:
    """The journal of process `pid` for the recording in `folder`."""
    return f"{folder}{_JOURNAL}.{pid}"


def write_documents(folder: str, facts: dict[str, Any]) -> None:
    """Reads and removes the journals of all processes, and writes their entries as the documents of a recorded machine.
    `facts`: values to begin with, those of the recorded machine that is recorded again."""
    entries = list(_remove_journals(folder))
    facts = {**facts}
    for entry in entries:
        if entry.kind == "file_system":
            facts["file_systems"] = {**facts.get("file_systems", {}), entry.key: _value(entry)}
        elif entry.kind == "usage":
            facts["usages"] = {**facts.get("usages", {}), entry.key: _value(entry)}
        elif entry.kind in ("clock", "environ", "time"):
            facts[entry.kind] = _value(entry)
        elif entry.kind == "error":
            facts["errors"] = {**facts.get("errors", {}), entry.key: entry.value}
    if "time" in facts:  # else the recorded machine had none
        _write(folder + FACTS_PATH, facts)
    _write(folder + REFUSED_PATH, _refused(folder, entries))
    for kind, path in (("pfc", PFC_PATH), ("reply", REPLIES_PATH)):
        _write(folder + path, {entry.key: _value(entry) for entry in entries if entry.kind == kind})


def _refused(folder: str, entries: Iterable[JournalEntry]) -> dict[str, str]:
    """The refused actions and the kernel's messages. A file that one probe only listed and another one read was not
    refused."""
    refused: dict[str, str] = {}
    empty = {entry.key for entry in entries if entry.kind == "empty"}
    for entry in entries:
        verb, _, place = entry.key.partition(" ")
        was_read = verb == "read" and (place in empty or _size(folder + place))
        if entry.kind == "refused" and not was_read and refused.get(entry.key, NOT_RECORDED) == NOT_RECORDED:
            refused[entry.key] = entry.value
    return refused


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _remove_journals(folder: str) -> Iterator[JournalEntry]:
    """Yields the entries of each journal, then removes it."""
    for path in sorted(glob.glob(glob.escape(folder + _JOURNAL) + ".*")):
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
        for line in lines:
            with contextlib.suppress(wire.WireError):  # the last line of a process that was killed
                yield wire.decode(line, JournalEntry)
        os.unlink(path)


def _value(entry: JournalEntry) -> Any:
    return wire.decode(entry.value.encode(), Any)


def _write(path: str, document: dict[str, Any]) -> None:
    if not document:
        return
    with open(path, "wb") as file:
        file.write(msgspec.json.format(wire.encode(document), indent=1) + b"\n")


# The files that a recording holds beyond those that the probes read on this machine: a probe stops early where it finds
# nothing, and its next version may read more. All are cheap to read, and change nothing when they are read.

_PCI: Final = "{class,device,vendor,modalias,numa_node,subsystem_device,subsystem_vendor}"
_LINK: Final = "{current,max}_link_{speed,width}"

TREES: Final = (
    f"/sys/bus/pci/devices/*/{_PCI}",
    f"/sys/bus/pci/devices/*/{_LINK}",
    "/sys/bus/pci/devices/*/{gpu_busy_percent,gpu_metrics,mem_info_vram_total,mem_info_vram_used,product_name}",
    "/sys/bus/pci/devices/*/{unique_id,vbios_version,xgmi_physical_id}",
    "/sys/bus/pci/devices/*/xgmi_hive_info/xgmi_hive_id",
    "/sys/bus/pci/devices/*/ras/{features,gpu_vram_bad_pages,*_err_count}",
    "/sys/bus/pci/devices/*/hwmon/*/temp*_{crit,emergency,input,label}",
    "/sys/module/amdgpu/{parameters/bad_page_threshold,version}",
    "/sys/class/infiniband/*/{board_id,fw_ver,hca_type,node_guid,node_type}",
    "/sys/class/infiniband/*/ports/*/{state,phys_state,rate,link_layer,lid,cap_mask}",
    "/sys/class/infiniband/*/ports/*/{counters,hw_counters}/*",
    "/sys/class/infiniband/*/ports/*/gids/{0,1,2,3,4,5,6,7}",
    "/sys/class/infiniband/*/ports/*/gid_attrs/{types,ndevs}/{0,1,2,3,4,5,6,7}",
    "/sys/class/net/*/{address,carrier_changes,duplex,mtu,operstate,speed,type}",
    "/sys/devices/system/node/node*/{cpulist,distance,meminfo}",
    "/sys/devices/system/cpu/{online,isolated,possible}",
    "/sys/module/{ib_core,mlx5_core,mlx5_ib,nvidia,nvidia_peermem,nvidia_uvm,rdma_cm}/{refcnt,srcversion,version}",
    "/sys/kernel/iommu_groups/*/type",
    "/proc/driver/nvidia/{params,version}",
    "/proc/driver/nvidia/gpus/*/information",
    "/proc/{cmdline,meminfo,mounts,modules,swaps,uptime,version}",
    "/proc/sys/kernel/{hostname,osrelease,random/boot_id,numa_balancing}",
)
MAX_FILES: Final = 50_000


def check(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    """Reads all files in TREES. A RecordingHost records them."""
    count = 0
    for pattern in TREES:
        for path in _matching(host, "", _alternatives(pattern)):
            try:
                host.read_bytes(path)
            except Unknown:
                continue
            count += 1
            if count >= MAX_FILES:
                raise Unknown(f"there are more than {MAX_FILES} files")
    yield Fact("files", count)


SWEEP: Final = Probe("trees", check, Thresholds(), deadline_seconds=60.0)


def _alternatives(pattern: str) -> tuple[tuple[str, ...], ...]:
    """The names that each part of the path may have: `{a,b}` is either of them."""
    return tuple(_expanded(part) for part in _parts(pattern))


def _parts(pattern: str) -> list[str]:
    """The parts of `pattern` between slashes. Slashes within braces do not count."""
    parts, depth = [""], 0
    for letter in pattern.lstrip("/"):
        depth += (letter == "{") - (letter == "}")
        if letter == "/" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _expanded(part: str) -> tuple[str, ...]:
    head, brace, rest = part.partition("{")
    if not brace:
        return (part,)
    inside, _, tail = rest.partition("}")
    return tuple(head + word + end for word in inside.split(",") for end in _expanded(tail))


def _matching(host: Host, folder: str, parts: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """The paths below `folder` that match `parts`, which are as _alternatives() returns them."""
    if not parts:
        yield folder
        return
    for name in _names(host, folder, parts[0]):
        yield from _matching(host, f"{folder}/{name}", parts[1:])


def _names(host: Host, folder: str, wanted: tuple[str, ...]) -> Iterator[str]:
    if not any("*" in name for name in wanted):
        yield from wanted
        return
    yield from (name for name in host.names(folder) if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted))
