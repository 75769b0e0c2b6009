"""The kernel's word about the end of a process: killed for want of memory, a GPU's error, damaged memory, a fault.

A message is joined with the process by its pid, and, where it names none, by its time. Sources of the messages: Linux
6.12, mm/oom_kill.c, mm/memory-failure.c, arch/x86/mm/fault.c, arch/x86/kernel/traps.c; NVIDIA's Xid catalogue.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.processes import cgroup_files, read_text
from laggard.kit.words import printable_line
from laggard.probes.host.kernel_log import (
    NAME,
    KernelMessage,
    begins_with_users_text,
    holds_users_message,
    parse_messages,
    read_kmsg,
)

_BEFORE_SECONDS: Final = 30.0  # with its pid: a process in uninterruptible sleep dies late
_SAME_TIME_SECONDS: Final = 10.0  # without a pid
_CLOCK_SECONDS: Final = 2.0  # by which the log's clock may run ahead of CLOCK_MONOTONIC
_MAX_CHARACTERS: Final = 200
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO

OUT_OF_MEMORY: Final = "out_of_memory"
_SEGFAULT: Final = "segfault"

_WITH_PID: Final = (
    (
        OUT_OF_MEMORY,
        re.compile(
            r"(?:Memory cgroup out of memory|Out of memory(?: \([a-z_]{1,40}\))?): [Kk]ill(?:ed)? process (\d+)\b"
        ),
    ),
    (OUT_OF_MEMORY, re.compile(r"oom-kill:constraint=CONSTRAINT_[A-Z_]+,nodemask=.*,task=.*,pid=(\d+),uid=\d+$")),
    ("memory_error", re.compile(rf"Memory failure: \S+ (?:Killing|Sending SIGBUS to) {NAME}:(\d+) due to hardware")),
    ("gpu_error", re.compile(r"NVRM: Xid \([^)]*\): \d+, pid='?(\d+)")),
    (_SEGFAULT, re.compile(rf"{NAME}\[(\d+)\]: segfault at [0-9a-f]+ ip ")),
    (_SEGFAULT, re.compile(rf"(?:traps: )?{NAME}\[(\d+)\] (?:trap |general protection)[a-z0-9 ,]{{0,40}} ?ip:")),
)
"""The words before a pid are longer than a process's name, which a user chooses, and the name is matched at its
longest: so no name holds a whole message with another's pid."""

_WITHOUT_PID: Final = (
    ("gpu_error", re.compile(r"NVRM: Xid \([^)]*\): \d+, (?!pid='?\d)|NVRM: GPU .* has fallen off the bus")),
    ("memory_error", re.compile(r"mce: \[Hardware Error\]|Memory failure: .*: recovery action")),
)


class KernelWord(NamedTuple):
    """`cause`: out_of_memory, gpu_error, memory_error or segfault; `text`: the message that says so."""

    cause: str
    text: str


class OomCounts(NamedTuple):
    """The kernel's counts of processes that it killed for want of memory. `cgroup`: the file and the count that speak
    for this process; empty where none does. `before`, `after`: the machine's, when the process was seen first and when
    it ended; None: not known."""

    cgroup: str
    before: int | None = None
    after: int | None = None


_ONLY_THE_LOG: Final = "only the log says so: "


def confirmed_word(
    messages: Sequence[KernelMessage], pid: int, ended_at: float, counts: OomCounts, *, killed: bool
) -> KernelWord | None:
    """The reason why the kernel ended the process, with a second witness where that is want of memory: the log says
    which process, and a count that there was a kill at all. Where the machine's count stands still, the log is not
    believed; where no count can be read, its word says that it is alone. A cgroup's count alone speaks for a process
    that SIGKILL ended (`killed`), and only where the log does not say that it was another."""
    none_killed = not counts.cgroup and counts.before is not None and counts.before == counts.after
    believed = [each for each in messages if not (none_killed and _tells_of_a_kill(each.text))]
    word = kernel_word(believed, pid, ended_at)
    if word is not None and word.cause == OUT_OF_MEMORY and not counts.cgroup and None in (counts.before, counts.after):
        return word._replace(text=(_ONLY_THE_LOG + word.text)[:_MAX_CHARACTERS])
    if word is not None or not killed or not counts.cgroup or names_another(believed, pid, ended_at):
        return word
    return KernelWord(OUT_OF_MEMORY, printable_line(counts.cgroup, _MAX_CHARACTERS))


def _tells_of_a_kill(text: str) -> bool:
    return any(cause == OUT_OF_MEMORY for cause, _ in _named(text))


def kernel_word(messages: Iterable[KernelMessage], pid: int, ended_at: float) -> KernelWord | None:
    """The newest message that explains the end of process `pid` at `ended_at`, in seconds on the log's clock. One that
    names the pid comes before one that is merely of the same time."""
    by_pid = by_time = None
    for message in messages:
        age = ended_at - message.seconds if message.seconds is not None else None
        if age is None or not -_CLOCK_SECONDS <= age <= _BEFORE_SECONDS:
            continue
        for cause, named in _named(message.text):
            if named == pid:
                by_pid = KernelWord(cause, printable_line(message.text, _MAX_CHARACTERS))
        for cause, pattern in _WITHOUT_PID:
            if age <= _SAME_TIME_SECONDS and pattern.match(message.text) and not begins_with_users_text(message.text):
                by_time = KernelWord(cause, printable_line(message.text, _MAX_CHARACTERS))
    return by_pid or by_time


def names_another(messages: Iterable[KernelMessage], pid: int, ended_at: float) -> bool:
    """Whether the kernel says that it killed other processes for want of memory at that time, and not `pid`: it names
    each that it kills."""
    killed = {
        named
        for message in messages
        if message.seconds is not None and -_CLOCK_SECONDS <= ended_at - message.seconds <= _BEFORE_SECONDS
        for cause, named in _named(message.text)
        if cause == OUT_OF_MEMORY
    }
    return bool(killed) and pid not in killed


def _named(text: str) -> Iterator[tuple[str, int]]:
    """Yields the causes that a message tells, each with the process that it names. Only that a process accessed memory
    that is not its own is told in messages that begin with its name."""
    for cause, pattern in _WITH_PID:
        is_users = holds_users_message if cause == _SEGFAULT else begins_with_users_text
        if (found := pattern.match(text)) and not is_users(text):
            yield cause, int(found[1])


def read_messages() -> tuple[KernelMessage, ...]:
    """This machine's log; empty where it cannot be read, or counts pids differently than this process."""
    try:
        if os.stat("/proc/self/ns/pid").st_ino != _INITIAL_PID_NAMESPACE:
            return ()
        return tuple(parse_messages(read_kmsg()))
    except OSError:
        return ()


# The process of a memory cgroup that the kernel killed for want of memory, by the cgroup's count.
#
# The count says how many were killed and not which: also a launcher ends processes by SIGKILL, once it has seen that
# one is gone. The kernel counts before it kills, so a kill belongs to the first process that ends after it. Where that
# one ended in another way, as a rank does whose data loader was killed, the kernel killed a process that nobody
# watches.

_TOGETHER_SECONDS: Final = 1.0
"""The time after the first end for which a second kill of the same moment waits for its process. Our own choice: who
frees much memory ends a little later; a launcher's SIGKILL usually comes after a SIGTERM and more time than that."""


class OomKills:
    """The kills of each cgroup, and how many of them have their process. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[int, float]] = {}  # by file: the last count, and when it was first seen
        self._told: dict[str, int] = {}  # by file: so many of these kills have their process, or never get one

    def ended(self, before: Mapping[str, int], at: float) -> str:
        """Returns the file and the count that speak for a kill of this process; else "". It is to be called for each
        process in the order in which they end, `at` in seconds. `before`: read_oom_kills() when the process was seen
        first."""
        with self._lock:
            told = [
                f"{path}: oom_kill {count}"
                for path, count in count_oom_kills(before).items()
                if self._takes(path, before[path], count, at)
            ]
        return told[0] if told else ""

    def keep(self, paths: Collection[str]) -> None:
        """Forgets all other files."""
        with self._lock:
            for path in self._told.keys() - set(paths):
                del self._told[path], self._counted[path]

    def _takes(self, path: str, before: int, count: int, at: float) -> bool:
        """Whether the process that ended `at` takes one of the kills that `path` counts."""
        counted, since = self._counted.get(path, (before, at))
        since = at if count > counted else since
        self._counted[path] = count, since
        if at - since > _TOGETHER_SECONDS:
            self._told[path] = count
        told = max(before, self._told.get(path, 0))
        self._told[path] = min(told + 1, count)
        return count > told


def read_oom_kills(pid: int, root: str = "/") -> dict[str, int]:
    """The number of processes that the kernel has killed for want of memory in the process's memory cgroup, by the file
    that counts them; empty where no such file can be read."""
    try:
        lines = read_text(f"{root}proc/{pid}/cgroup")
    except OSError:
        return {}
    return count_oom_kills(cgroup_files(lines, "memory", "memory.events", "memory.oom_control", f"{root}sys/fs/cgroup"))


def count_machines_oom_kills(root: str = "/") -> int | None:
    """The number of processes that the kernel of this machine has killed for want of memory since boot, in a cgroup or
    not; None where it does not tell (Linux before 4.13)."""
    try:
        found = re.search(r"^oom_kill (\d+)$", read_text(f"{root}proc/vmstat"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def count_oom_kills(paths: Iterable[str]) -> dict[str, int]:
    """The counts in these files; what cannot be read is left out."""
    counts = {}
    for path in paths:
        try:
            found = re.search(r"^oom_kill (\d+)$", read_text(path), re.MULTILINE)
        except OSError:
            continue
        if found:
            counts[path] = int(found[1])
    return counts
