"""The content of a recording beside files: a journal that probes' processes write line by line, and the documents that
are made of it when they have ended."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from laggard import wire
from laggard.model import Finding
from laggard.probes.errors import Unknown, or_none
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import DOCUMENTS, FACTS_PATH, REFUSED_PATH
from laggard.probes.probe import Fact, Probe, Thresholds

NOT_RECORDED: Final = "not recorded"
_JOURNAL: Final = "/laggard/.notes"
_OF_FILES: Final = ("refused", "empty")


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """One answer of the machine: to `key` among those of its kind (see kernel.py, DOCUMENTS), or without a key all of
    them. Also of kind `errors`, where the call `key` failed, and `refused`, where `key` could not be read, with the
    kernel's message; of kind `empty`, where the file `key` really is empty."""

    kind: str
    key: str
    value: Any = None


def journal_path(folder: str, pid: int) -> str:
    """The journal of process `pid` for the recording in `folder`."""
    return f"{folder}{_JOURNAL}.{pid}"


def write_documents(folder: str, facts: dict[str, Any]) -> None:
    """Reads and removes the journals of all processes, and writes their entries as the documents of a recorded machine.
    `facts`: values to begin with, those of the recorded machine that is recorded again."""
    entries = list(_remove_journals(folder))
    answers = {**facts}
    for kind, key, value in ((it.kind, it.key, it.value) for it in entries if it.kind not in _OF_FILES):
        answers[kind] = {**answers.get(kind, {}), key: value} if key else value
    _write(folder + REFUSED_PATH, _refused(folder, entries))
    for kind, (path, _) in DOCUMENTS.items():
        _write(folder + path, answers.pop(kind, {}))
    if "time" in answers:  # else the recorded machine had none
        _write(folder + FACTS_PATH, answers)


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


def _write(path: str, document: dict[str, Any]) -> None:
    if not document:
        return
    with open(path, "wb") as file:
        file.write(msgspec.json.format(wire.encode(document), indent=1) + b"\n")


# The files that a recording holds beyond those that the probes read on this machine: a probe stops early where it finds
# nothing, and its next version may read more. All are cheap to read, and change nothing when they are read.


TREES: Final = (
    "/sys/bus/pci/devices/*/class device vendor modalias numa_node subsystem_device subsystem_vendor",
    "/sys/bus/pci/devices/*/current_link_speed current_link_width max_link_speed max_link_width",
    "/sys/bus/pci/devices/*/gpu_busy_percent gpu_metrics mem_info_vram_total mem_info_vram_used product_name",
    "/sys/bus/pci/devices/*/unique_id vbios_version xgmi_physical_id current_*_partition",
    "/sys/bus/pci/devices/*/xgmi_hive_info/xgmi_hive_id",
    "/sys/bus/pci/devices/*/ras/features gpu_vram_bad_pages *_err_count",
    "/sys/bus/pci/devices/*/hwmon/*/temp*_crit temp*_emergency temp*_input temp*_label",
    "/sys/module/amdgpu/parameters/bad_page_threshold",
    "/sys/module/amdgpu/version",
    "/sys/class/infiniband/*/board_id fw_ver hca_type node_guid node_type",
    "/sys/class/infiniband/*/ports/*/state phys_state rate link_layer lid cap_mask",
    "/sys/class/infiniband/*/ports/*/counters hw_counters/*",
    "/sys/class/infiniband/*/ports/*/gids/0 1 2 3 4 5 6 7",
    "/sys/class/infiniband/*/ports/*/gid_attrs/types ndevs/0 1 2 3 4 5 6 7",
    "/sys/class/net/*/address carrier_changes duplex mtu operstate speed type",
    "/sys/devices/system/node/node*/cpulist distance meminfo",
    "/sys/devices/system/cpu/online isolated possible",
    "/sys/module/ib_core mlx5_core mlx5_ib nvidia nvidia_peermem nvidia_uvm rdma_cm/refcnt srcversion version",
    "/sys/kernel/iommu_groups/*/type",
    "/proc/driver/nvidia/params version",
    "/proc/driver/nvidia/gpus/*/information",
    "/proc/cmdline meminfo mounts modules swaps uptime version",
    "/proc/self/mountinfo",
    "/proc/sys/kernel/hostname osrelease numa_balancing tainted",
    "/proc/sys/kernel/random/boot_id",
)
"""Each part of a path is one name, or several with spaces between them."""

MAX_FILES: Final = 50_000


def check(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    """Reads all files in TREES. A RecordingHost records them."""
    count = 0
    for pattern in TREES:
        for path in _matching(host, "", pattern.split("/")[1:]):
            if or_none(host.read_bytes, path) is None:
                continue
            count += 1
            if count >= MAX_FILES:
                raise Unknown(f"there are more than {MAX_FILES} files")
    yield Fact("files", count)


SWEEP: Final = Probe("trees", check, Thresholds(), deadline_seconds=60.0)


def _matching(host: Host, folder: str, parts: Sequence[str]) -> Iterator[str]:
    """The paths below `folder` that match `parts`."""
    if not parts:
        yield folder
        return
    names = parts[0].split()
    if "*" in parts[0]:
        names = [it for it in host.names(folder) if any(fnmatch.fnmatchcase(it, pattern) for pattern in names)]
    for name in names:
        yield from _matching(host, f"{folder}/{name}", parts[1:])
