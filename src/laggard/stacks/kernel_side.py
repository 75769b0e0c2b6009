"""Where a thread stands on the kernel's side, by /proc/PID/task/TID: what is left to know of a rank that does not
answer for its stack, since it is stopped, waits in the kernel, or holds Python's lock in C. Standard library only.

The kernel tells `status` to everybody, `wchan` to who may look at the process (it writes 0 to all others), `syscall` to
who may trace it, and `stack` to CAP_SYS_ADMIN (proc(5); fs/proc/base.c: proc_pid_wchan, proc_pid_syscall,
proc_pid_stack). The first two take no lock that a user can hold. The others take the process's exec_update_lock, and a
process that calls execve(2) may keep that for as long as it likes: who reads another user's does it in a process that
can be killed. Of a system call its number alone is kept: its arguments are addresses and contents of the user's.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from laggard.stacks.sampled import SampledError, number_of, text_of

MAX_FUNCTIONS: Final = 32
"""The most functions of the kernel's stack that are kept, the innermost first."""

MAX_TEXT: Final = 160
NOT_TOLD: Final = -2
NO_CALL: Final = -1
"""The kernel's own number of a thread that is in no system call: in a page fault, or an exception."""

RUNNING, SLEEPING, UNINTERRUPTIBLE = "R", "S", "D"
STOPPED, TRACED = "T", "t"
ENDED: Final = frozenset("ZXx")
STANDS: Final = frozenset((STOPPED, TRACED, UNINTERRUPTIBLE))
"""The states in which a thread goes on by nothing that another rank does."""

_MAX_BYTES: Final = 16_384
_STATES: Final = frozenset("RSDTtZXxI")
_FUNCTION = re.compile(r"^\[<[^>\n]{0,20}>\] ([A-Za-z_][\w.]{0,90})\+0x[^\n\[]{1,40}(?:\[(\w{1,60})\])?", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][\w.]{0,90}")
_WAITS: Final = MappingProxyType(
    {
        "nfs": "NFS",
        "rpc_": "NFS",
        "fuse_": "FUSE",
        "request_wait_answer": "FUSE",
        "ceph_": "Ceph",
        "ll_": "Lustre",
        "cl_": "Lustre",
        "osc_": "Lustre",
        "ldlm_": "Lustre",
        "ptlrpc": "Lustre",
        "uvm_": "NVIDIA's driver",
        "nvidia_": "NVIDIA's driver",
        "amdgpu_": "AMD's driver",
        "ib_uverbs": "RDMA verbs",
    }
)
"""The owner by the beginning of a function's name (fs/nfs, net/sunrpc, fs/fuse, fs/ceph; Lustre's llite, obdclass,
osc and ptlrpc; open-gpu-kernel-modules' nvidia-uvm; drivers/gpu/drm/amd; drivers/infiniband/core)."""

_MODULES: Final = MappingProxyType(
    {
        "sunrpc": "NFS",
        "nfsv3": "NFS",
        "nfsv4": "NFS",
        "lustre": "Lustre",
        "mmfs26": "GPFS",
        "mmfslinux": "GPFS",
        "nvidia": "NVIDIA's driver",
        "amdgpu": "AMD's driver",
        "beegfs": "BeeGFS",
    }
)

_X86_64: Final = MappingProxyType(
    {
        **{0: "read", 1: "write", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 9: "mmap", 11: "munmap"},
        **{16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select", 24: "sched_yield"},
        **{26: "msync", 28: "madvise", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto"},
        **{45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 56: "clone", 58: "vfork", 59: "execve", 61: "wait4"},
        **{65: "semop", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 78: "getdents", 82: "rename"},
        **{83: "mkdir", 87: "unlink", 162: "sync", 202: "futex", 217: "getdents64", 230: "clock_nanosleep"},
        **{232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat", 263: "unlinkat", 270: "pselect6"},
        **{271: "ppoll", 281: "epoll_pwait", 285: "fallocate", 288: "accept4", 332: "statx", 426: "io_uring_enter"},
        **{435: "clone3", 449: "futex_waitv"},
    }
)
"""Calls that may wait, by number (arch/x86/entry/syscalls/syscall_64.tbl)."""

_GENERIC: Final = MappingProxyType(
    {
        **{22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 35: "unlinkat", 47: "fallocate", 56: "openat"},
        **{57: "close", 61: "getdents64", 63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64"},
        **{68: "pwrite64", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 80: "fstat", 81: "sync", 82: "fsync"},
        **{83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 124: "sched_yield"},
        **{202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg"},
        **{215: "munmap", 220: "clone", 221: "execve", 222: "mmap", 227: "msync", 233: "madvise", 242: "accept4"},
        **{260: "wait4", 291: "statx", 426: "io_uring_enter", 435: "clone3", 449: "futex_waitv"},
    }
)
"""The same of 64-bit Arm and RISC-V (include/uapi/asm-generic/unistd.h)."""

_CALLS: Final[Mapping[str, Mapping[int, str]]] = MappingProxyType(
    {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC}
)


class KernelSide(NamedTuple):
    """`state`: the letter of /proc/PID/status; `waits_in`: the kernel's function in which it waits, empty: none, or not
    told; `call`: the number of its system call, or one of the two above; `functions`: the kernel's stack, the innermost
    first, with a module as `name [module]`, empty where it is not told; `tracer`: the process that traces it, 0:
    none."""

    state: str
    waits_in: str = ""
    call: int = NOT_TOLD
    functions: tuple[str, ...] = ()
    tracer: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether more rights would tell nothing that matters."""
        return self.call != NOT_TOLD or self.state in ENDED or self.state in (STOPPED, TRACED)

    @property
    def stands(self) -> bool:
        return self.state in STANDS


class NotThere(Exception):
    """There is no such thread any more, or it is another user's."""


def read_kernel_side(
    pid: int, thread: int, owner: int | None = None, proc: str = "/proc", whole: bool = True
) -> KernelSide:
    """Reads the thread of the process, both by their numbers here. What is not permitted is left out; without `whole`
    also what may keep a reader waiting. Raises NotThere, also where the process is not `owner`'s."""
    folder = f"{proc}/{pid}/task/{thread}"
    try:
        status = _read(f"{folder}/status")
    except OSError:
        raise NotThere from None
    state = re.search(r"^State:\s+(\w)", status, re.MULTILINE)
    users = re.search(r"^Uid:\s+(\d+)\s+(\d+)", status, re.MULTILINE)
    tracer = re.search(r"^TracerPid:\s+(\d{1,10})", status, re.MULTILINE)
    if state is None or users is None or (owner is not None and str(owner) not in users.groups()):
        raise NotThere
    return KernelSide(
        state[1],
        _waits_in(_read_if_told(f"{folder}/wchan")),
        _call(_read_if_told(f"{folder}/syscall")) if whole else NOT_TOLD,
        _functions(_read_if_told(f"{folder}/stack")) if whole else (),
        int(tracer[1]) if tracer else 0,
    )


def checked(state: str, waits_in: str, call: int, functions: tuple[str, ...], tracer: int) -> KernelSide:
    """The values as they come from elsewhere, within bounds. Raises ValueError."""
    names = (*functions, *([waits_in] if waits_in else []))
    if state not in _STATES or len(functions) > MAX_FUNCTIONS or not all(_is_function(name) for name in names):
        raise ValueError("no place in a kernel")
    return KernelSide(state, waits_in, call, functions, max(0, tracer))


def text_of_side(side: KernelSide, machine: str = "") -> str:
    """Returns the place in words, such as `in the kernel: futex_wait_queue (system call futex)`, of MAX_TEXT characters
    at most. `machine`: as platform.machine() has it; empty: this one."""
    return _text(side, machine or platform.machine())[:MAX_TEXT]


def _text(side: KernelSide, machine: str) -> str:
    if side.state == STOPPED:
        return "stopped by a signal"
    if side.state == TRACED:
        return f"stopped by a debugger (process {side.tracer})" if side.tracer else "stopped by a debugger"
    if side.state in ENDED:
        return "ended, and its parent has not waited for it"
    call = _CALLS.get(machine, {}).get(side.call, f"number {side.call}") if side.call >= 0 else ""
    if side.state == RUNNING:
        return f"on a CPU, or ready for one{f' (system call {call})' if call else ', in no system call'}"
    where = side.waits_in or (_name(side.functions[0]) if side.functions else "")
    about = [f"system call {call}"] if call else ["a page fault"] if side.call == NO_CALL else []
    about += [whose] if (whose := _whose(side)) else []
    told = where or "it waits"
    told += f" ({', '.join(about)})" if about else ""
    return f"uninterruptible: {told}" if side.state == UNINTERRUPTIBLE else f"in the kernel: {told}"


def _whose(side: KernelSide) -> str:
    """Returns whose file system or driver waits, where the functions say that: no name is guessed."""
    for function in (side.waits_in, *side.functions):
        name, _, module = function.partition(" ")
        known = next((whose for start, whose in _WAITS.items() if name.startswith(start)), "")
        if found := known or _MODULES.get(module.strip("[]"), ""):
            return found
    return ""


def _name(function: str) -> str:
    return function.partition(" ")[0]


def _is_function(text: str) -> bool:
    name, space, module = text.partition(" ")
    return _NAME.fullmatch(name) is not None and (not space or re.fullmatch(r"\[\w{1,60}\]", module) is not None)


def _waits_in(text: str) -> str:
    return text if _NAME.fullmatch(text) else ""


def _call(text: str) -> int:
    """Of `NUMBER ARGUMENTS... SP PC`, of `running`, and of `-1 SP PC`."""
    word = text.partition(" ")[0]
    return int(word) if re.fullmatch(r"-1|\d{1,4}", word) else NOT_TOLD


def _functions(text: str) -> tuple[str, ...]:
    found = [f"{name} [{module}]" if module else name for name, module in _FUNCTION.findall(text)]
    return tuple(found[:MAX_FUNCTIONS])


def _read_if_told(path: str) -> str:
    try:
        return _read(path).strip()
    except OSError:
        return ""


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        return file.read(_MAX_BYTES).decode("ascii", "replace")


# A rank that took no stacks of itself, as a rank beside it saw it: its process, and where that stands in the kernel. A
# small JSON document. Standard library only.

SUFFIX: Final = ".kernel"
KEY: Final = "laggard_kernel"
MAX_BYTES: Final = 16 * 1024


class Unanswered(NamedTuple):
    """`at`: Unix time; `silent_seconds`: for how long none of its threads had given a sign of life; `side`: of its main
    thread."""

    job_id: str
    rank: int
    node: str
    pid: int
    at: float
    silent_seconds: float
    side: KernelSide


def encode(seen: Unanswered) -> bytes:
    return json.dumps({KEY: 1, **seen._asdict(), "side": seen.side._asdict()}).encode("ascii")


def decode(text: bytes) -> Unanswered:
    """The document in `text`. Raises SampledError."""
    try:
        value = json.loads(text[:MAX_BYTES])
        if value[KEY] != 1:
            raise ValueError
        side = value["side"]
        functions = tuple(text_of(each) for each in side["functions"])
        return Unanswered(
            job_id=text_of(value["job_id"]),
            rank=number_of(value["rank"]),
            node=text_of(value["node"]),
            pid=number_of(value["pid"]),
            at=float(value["at"]),
            silent_seconds=float(value["silent_seconds"]),
            side=checked(
                text_of(side["state"]),
                text_of(side["waits_in"]),
                int(side["call"]),
                functions,
                number_of(side["tracer"]),
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise SampledError("no document of a rank without stacks that this release reads") from None
