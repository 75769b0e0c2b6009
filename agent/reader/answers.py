"""The answers of the reader to a fixed list of questions. No question holds a path, and what is read with privileges
leaves this file only as the few values that are asked for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from laggard.agent.ranks.stack_files import NoSide, StackFile, is_stack_file, read_stack_file, whole_side
from laggard.agent.traffic.sockets import VARIABLES, process_sockets, process_variables
from laggard.kit.environment import rank_dir
from laggard.kit.errors import UsageError
from laggard.kit.processes import zombie_status
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import read_own_kmsg
from laggard.probes.host.reader import MAX_ANSWER_BYTES
from laggard.probes.host.virtualization import modules_bytes
from laggard.probes.nccl.model.running_ranks import read_own_rank_processes
from laggard.probes.pci.model.config_space import read_needed_bytes

CAP_DAC_READ_SEARCH: Final = 2  # capability.h
_VERSION_3: Final = 0x20080522
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    """Capabilities 0 to 31; a second one has the rest."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextlib.contextmanager
def without_capability(number: int) -> Iterator[None]:
    """Takes a capability below 32 from the effective set of this thread, and puts it back where it was there. Raises
    OSError."""
    sets = (_Set * 2)()
    _call("capget", sets)
    before = sets[0].effective
    sets[0].effective = before & ~(1 << number)
    _call("capset", sets)
    try:
        yield
    finally:
        sets[0].effective = before
        _call("capset", sets)


def _call(name: str, sets: object) -> None:
    header = _Header(_VERSION_3, 0)  # 0: this thread
    if getattr(_libc, name)(ctypes.byref(header), sets):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CAP_SYS_PTRACE: Final = 19  # capability.h
_PID: Final = re.compile(r"[1-9][0-9]{0,9}")
_UID: Final = re.compile(r"[0-9]{1,10}")


class Refused(Exception):
    """The question is not answered. The text is one line."""


def answer(question: str, host: Host) -> bytes:
    """The answer to one question. Raises Refused."""
    name, _, argument = question.partition(" ")
    reply = _REPLIES.get(name)
    if reply is None:
        raise Refused(f"no such question; there are {', '.join(_REPLIES)}")
    try:
        body = reply(host, argument)
    except Unknown as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"the kernel refuses: {error.strerror}") from None
    if len(body) > MAX_ANSWER_BYTES:
        raise Refused(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return body


def _pci_config(host: Host, address: str) -> bytes:
    if not _ADDRESS.fullmatch(address):
        raise Refused("that is no address of a PCI device")
    return host.read_parts(f"/sys/bus/pci/devices/{address}/config", read_needed_bytes)


def _kernel_log(host: Host, argument: str) -> bytes:
    """The end of the log, where it is too long for one answer: from the beginning of a line on, since the middle of one
    may be a user's text."""
    _without(argument)
    log = read_own_kmsg().encode()
    return log if len(log) <= MAX_ANSWER_BYTES else log[-MAX_ANSWER_BYTES:].partition(b"\n")[2]


def _rank_processes(host: Host, argument: str) -> bytes:
    _without(argument)
    return msgspec.json.encode(read_own_rank_processes(host, partial(_read_as_anybody, host)))


def _read_as_anybody(host: Host, path: str, pid: str) -> str:
    """A file whose path the user of the process `pid` chose: the right to read every file is not used for it. Raises
    Unknown."""
    try:
        with without_capability(CAP_DAC_READ_SEARCH):
            return host.read_users_file(path, pid)
    except OSError as error:  # of capset(2): a filter of system calls
        raise Unknown(f"cannot give up a capability to read {path}: {error.strerror}") from None


def _sockets(host: Host, pid: str) -> bytes:
    return msgspec.json.encode(process_sockets(_pid(pid)))


def _job_variables(host: Host, pid: str) -> bytes:
    """The variables that say who the job's other nodes are, and no others."""
    return msgspec.json.encode(process_variables(_pid(pid), VARIABLES))


def _pid(text: str) -> int:
    if not _PID.fullmatch(text):
        raise Refused("that is no process id")
    return int(text)


def _clock(host: Host, argument: str) -> bytes:
    _without(argument)
    return msgspec.json.encode(host.clock())


def _installed_memory(host: Host, argument: str) -> bytes:
    """The bytes of the memory modules, and nothing else of the firmware's tables: they hold serial numbers."""
    _without(argument)
    return str(modules_bytes(host)).encode()


def _exit_status(host: Host, pid: str) -> bytes:
    status = zombie_status(_pid(pid), _may_trace())
    if status is None:
        raise Refused("no process of that id has ended and waits for its parent")
    return str(status).encode()


def _rank_stacks(host: Host, argument: str) -> bytes:
    """The stacks that a rank of a user left: when the file last changed (Unix time), and its content."""
    uid, _, rest = argument.partition(" ")
    folder, _, name = rest.partition(" ")
    file = StackFile(folder, name)
    if not _UID.fullmatch(uid) or not is_stack_file(file):
        raise Refused("that is no user, folder and file of stacks")
    content = read_stack_file(rank_dir(os.environ), file, int(uid))
    return f"{content.changed!r}\n".encode() + content.text


def _kernel_side(host: Host, argument: str) -> bytes:
    """Where the main thread of a user's process stands in the kernel: names of the kernel's functions, and numbers."""
    uid, _, pid = argument.partition(" ")
    if not _UID.fullmatch(uid):
        raise Refused("that is no user and process")
    try:
        side = whole_side(int(uid), _pid(pid))
    except NoSide as error:
        raise Refused(str(error)) from None
    return msgspec.json.encode(side)


def _may_trace() -> bool:
    """Whether this process has CAP_SYS_PTRACE."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        effective = next((line.split()[1] for line in file if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_SYS_PTRACE & 1)


def _without(argument: str) -> None:
    if argument:
        raise Refused("that question stands alone")


_REPLIES: Final[Mapping[str, Callable[[Host, str], bytes]]] = {
    "pci_config": _pci_config,
    "kernel_log": _kernel_log,
    "rank_processes": _rank_processes,
    "exit_status": _exit_status,
    "clock": _clock,
    "installed_memory": _installed_memory,
    "sockets": _sockets,
    "job_variables": _job_variables,
    "rank_stacks": _rank_stacks,
    "kernel_side": _kernel_side,
}


def allowed_users(names: tuple[str, ...]) -> frozenset[int]:
    """The uids of `names`, each a user's name or a uid, with root's and this process's own. Raises UsageError."""
    return frozenset({0, os.geteuid(), *map(_uid, names)})


def _uid(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UsageError(f"no user {name}: name one that exists with --allow-user") from None
