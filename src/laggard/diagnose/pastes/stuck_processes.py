"""The formats `ps with states` and `torch_extensions`: processes that wait in the kernel (state D), or for a lock
that a build left behind.

Source: PyTorch (torch/utils/cpp_extension.py, torch/utils/file_baton.py): the file `lock` has no owner and no time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.section import Section, paste_format
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

WAITS: Final[tuple[tuple[str, str, str], ...]] = (
    (r"ldlm_\w+|cl_\w+|osc_\w+|ptlrpc_\w+|mdc_\w+|lov_\w+|ll_\w+", "Lustre", "MOUNT_HUNG"),
    (r"nfs\w*|rpc_wait\w*|rpc_\w+", "NFS", "MOUNT_HUNG"),
    (r"ceph_\w+", "CephFS", "MOUNT_HUNG"),
    (r"cxiWait\w*|gpfs\w*|mmfs\w*|cxi\w*", "GPFS", "MOUNT_HUNG"),
    (r"request_wait_answer|fuse_\w+", "FUSE", "MOUNT_HUNG"),
    (r"wekafs\w*|beegfs\w*|FhgfsOps\w*", "its file system", "MOUNT_HUNG"),
    (r"nvidia\w*|os_acquire_\w+|_?nv\d+rm|rm_\w+|uvm_\w+", "NVIDIA's driver", "GPU_DRIVER_HUNG"),
)
_NAMES: Final = "|".join(names for names, _, _ in WAITS)
_LINE: Final = re.compile(
    r"^[ \t]*(?:\S+[ \t]+)??(\d{1,10})[ \t]+(?:\S+[ \t]+){0,6}?D[a-zN<+]{0,4}[ \t]+"
    rf"(?:\S+[ \t]+){{0,4}}?({_NAMES})[ \t]+(.*)$",
    re.MULTILINE,
)
_ELAPSED: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d{2}):(\d{2})\b")
MIN_SECONDS: Final = 120
"""The shortest time for which a process hangs: less may be a slow read."""


def read_processes(section: Section) -> Iterator[Finding | Fact]:
    found: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    lines = _LINE.findall(section.text)[:4096]
    yield Fact("processes_in_state_d", len(lines))
    for pid, wait, rest in lines:
        if _seconds(rest) >= MIN_SECONDS or not _ELAPSED.search(rest):
            system, code = next((name, code) for names, name, code in WAITS if re.fullmatch(names, wait))
            found.setdefault((code, system), []).append((pid, wait, rest))
    for (code, system), rows in found.items():
        yield _finding(code, system, rows)


def _seconds(rest: str) -> int:
    match = _ELAPSED.search(rest)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _finding(code: str, system: str, rows: list[tuple[str, str, str]]) -> Finding:
    pids = ", ".join(pid for pid, _, _ in rows[:4])
    return finding(
        code,
        system,
        f"does not answer: processes {pids} hang in the kernel (D state, {rows[0][1]})",
        severity=Severity.CRITICAL,
        evidence={"processes": [pid for pid, _, _ in rows[:16]], "line": " ".join(rows[0])[:300]},
        fix="Such a process cannot be killed until it is answered: check the file server or the driver, and the "
        "kernel's log; often only a restart of the node helps.",
        commands=("dmesg -T | tail -50", "cat /proc/PID/stack"),
    )


STUCK_PROCESSES: Final = paste_format("ps", _LINE, read_processes)


_LOCK: Final = re.compile(
    r"^-r\S{8,10}\s+\d+\s+\S+\s+\S+\s+0\s+(.{5,40}?)\s+(\S*torch_extensions\S*/lock|lock)\s*$", re.MULTILINE
)
_WAIT: Final = re.compile(r"wait \(torch/utils/file_baton\.py|file_baton\.py\", line \d+, in wait")
_HEAD: Final = re.compile(rf"{_LOCK.pattern}|{_WAIT.pattern}", re.MULTILINE)
_FOLDER: Final = re.compile(r"\S*torch_extensions[\w./-]*")


def read_torch_lock(section: Section) -> Iterator[Finding | Fact]:
    text = f"{section.command}\n{section.text}"
    folder, lock, waits = _FOLDER.search(text), _LOCK.search(section.text), _WAIT.search(section.text)
    yield Fact("waits_for_a_lock", bool(waits))
    if not waits and not (folder and lock):
        return
    since = f" (since {lock[1]})" if lock else ""
    where = folder[0].rstrip("/:") if folder else "~/.cache/torch_extensions"
    yield finding(
        "JOB_STALE_LOCK",
        where,
        f"has a lock file that processes wait for{since}: torch's FileBaton, which a build that died left behind",
        evidence={"lock_since": lock[1] if lock else None, "waits": bool(waits)},
        fix="If no process builds this extension (no ninja, nvcc or c++ runs), remove its file `lock` and start again.",
        commands=("pgrep -a ninja", f"find {where} -name lock -mmin +30 -delete"),
    )


TORCH_LOCK: Final = paste_format("torch_extensions", _HEAD, read_torch_lock)
