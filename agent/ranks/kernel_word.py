"""What the kernel says about the end of a process: killed for want of memory, a GPU's error, damaged memory, a fault.

A message is joined with the process by its pid, and, where it names none, by its time. Sources of the messages: Linux
6.12, mm/oom_kill.c, mm/memory-failure.c, arch/x86/mm/fault.c, arch/x86/kernel/traps.c; NVIDIA's Xid catalogue.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from laggard.agent.ranks.cgroup_files import cgroup_files
from laggard.probes.host.kernel_log import KernelMessage, parse_messages, read_kmsg
from laggard.text.words import printable_line

_BEFORE_SECONDS: Final = 30.0  # with its pid: a process in uninterruptible sleep dies late
_SAME_TIME_SECONDS: Final = 10.0  # without a pid
_CLOCK_SECONDS: Final = 2.0  # by which the log's clock may run ahead of CLOCK_MONOTONIC
_MOST_CHARACTERS: Final = 200
_MOST_BYTES: Final = 16_384
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO

_WITH_PID: Final = (
    ("out_of_memory", re.compile(r"(?:Memory cgroup out|Out) of memory\b.*?[Kk]ill(?:ed)? process (\d+)\b")),
    ("out_of_memory", re.compile(r"oom-kill:.*\bpid=(\d+)\b")),
    ("memory_error", re.compile(r"Memory failure: \S+ (?:Killing|Sending SIGBUS to) \S*:(\d+) due to hardware")),
    ("gpu_error", re.compile(r"NVRM: Xid \([^)]*\): \d+, pid='?(\d+)")),
    ("segfault", re.compile(r"\S+\[(\d+)\]:? (?:segfault at|trap \w|general protection)")),
    ("segfault", re.compile(r"traps: \S+\[(\d+)\] ")),
)
_WITHOUT_PID: Final = (
    ("gpu_error", re.compile(r"NVRM: Xid \([^)]*\): \d+, (?!pid='?\d)|NVRM: GPU .* has fallen off the bus")),
    ("memory_error", re.compile(r"mce: \[Hardware Error\]|Memory failure: .*: recovery action")),
)


class KernelWord(NamedTuple):
    """`cause`: out_of_memory, gpu_error, memory_error or segfault; `text`: the message that says so."""

    cause: str
    text: str


def kernel_word(messages: Iterable[KernelMessage], pid: int, ended_at: float) -> KernelWord | None:
    """The newest message that explains the end of process `pid` at `ended_at`, in seconds on the log's clock. One that
    names the pid comes before one that is merely of the same time."""
    by_pid = by_time = None
    for message in messages:
        age = ended_at - message.seconds if message.seconds is not None else None
        if age is None or not -_CLOCK_SECONDS <= age <= _BEFORE_SECONDS:
            continue
        for cause, pattern in _WITH_PID:
            if (found := pattern.search(message.text)) and int(found[1]) == pid:
                by_pid = KernelWord(cause, printable_line(message.text, _MOST_CHARACTERS))
        for cause, pattern in _WITHOUT_PID:
            if age <= _SAME_TIME_SECONDS and pattern.search(message.text):
                by_time = KernelWord(cause, printable_line(message.text, _MOST_CHARACTERS))
    return by_pid or by_time


def read_kernel_word(pid: int, ended_at: float) -> KernelWord | None:
    """The same from this machine's log; None where it cannot be read, or counts pids differently than this process."""
    try:
        if os.stat("/proc/self/ns/pid").st_ino != _INITIAL_PID_NAMESPACE:
            return None
        return kernel_word(parse_messages(read_kmsg()), pid, ended_at)
    except OSError:
        return None


def read_oom_kills(pid: int, root: str = "/") -> dict[str, int]:
    """How many processes the kernel has killed for want of memory in the process's memory cgroup, by the file that
    counts them; empty where no such file can be read. Count again by count_oom_kills() when the process is gone."""
    try:
        lines = _read(f"{root}proc/{pid}/cgroup")
    except OSError:
        return {}
    return count_oom_kills(cgroup_files(lines, "memory", "memory.events", "memory.oom_control", f"{root}sys/fs/cgroup"))


def count_oom_kills(paths: Iterable[str]) -> dict[str, int]:
    """The counts in these files; what cannot be read is left out."""
    counts = {}
    for path in paths:
        try:
            found = re.search(r"^oom_kill (\d+)$", _read(path), re.MULTILINE)
        except OSError:
            continue
        if found:
            counts[path] = int(found[1])
    return counts


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")
