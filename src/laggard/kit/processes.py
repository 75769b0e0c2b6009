"""The processes of this machine, by /proc. Standard library only: this runs in trainings and in the gate."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import laggard

UNINTERRUPTIBLE: Final = "D"
"""The one state in which a process does not react to SIGKILL."""

_ENDED: Final = "ZX"
_EXITING: Final = 0x4  # PF_EXITING (include/linux/sched.h)
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_FIELDS: Final = 50
"""The fields from the state on, in each Linux since 3.5."""


class Stat(NamedTuple):
    """`state`: R, S, D, T, t, I, Z or X (proc_pid_stat(5)). `cpu_seconds`: of its threads, in user and system mode.
    `start_ticks`: clock ticks after boot. `core`: where it last ran. `wait_status`: 0 also where nobody may know."""

    state: str
    session: int
    flags: int
    cpu_seconds: float
    start_ticks: int
    core: int
    wait_status: int

    @property
    def has_ended(self) -> bool:
        """Also true of a zombie, which nobody has reaped yet."""
        return self.state in _ENDED

    @property
    def is_exiting(self) -> bool:
        """Whether the kernel takes it down: its sockets may be closed already, and it is no zombie yet."""
        return bool(self.flags & _EXITING)

    @property
    def age_seconds(self) -> float:
        """Seconds since it started; time in suspend counts."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / _TICKS


def parse_stat(data: bytes) -> Stat:
    """Parses `PID (COMMAND) STATE ...`. The command may hold spaces and parentheses, so the fields are counted from
    the last parenthesis. Raises ValueError."""
    fields = data.rpartition(b")")[2].split()
    if len(fields) < _FIELDS or len(fields[0]) != 1:
        raise ValueError("no /proc/PID/stat")
    return Stat(
        fields[0].decode("ascii"),
        int(fields[3]),
        int(fields[6]),
        (int(fields[11]) + int(fields[12])) / _TICKS,
        int(fields[19]),
        int(fields[36]),
        int(fields[49]),
    )


def load_stat(pid: int | str, proc: str = "/proc") -> Stat:
    """The stat of a process, or of a thread as `PID/task/TID`. Raises OSError, ValueError."""
    with open(f"{proc}/{pid}/stat", "rb") as file:
        return parse_stat(file.read(4096))


def read_stat(pid: int | str, proc: str = "/proc") -> Stat | None:
    """The same; None if there is no such process, or it cannot be read."""
    try:
        return load_stat(pid, proc)
    except (OSError, ValueError):
        return None


# The identity of the process that wrote a file, so that a later reader can ask whether it still runs. Standard library
# only.
#
# A process number alone is used again and again. With the boot, the PID namespace and the moment of its start a number
# is one process's; on another machine, or in another container, nothing can be said of it.

RUNS, STOPPED, GONE = "runs", "stopped", "gone"

_STOPPED_STATES = "Tt"


def own_identity() -> dict[str, Any]:
    """This process, for JSON: pid, start_ticks, boot_id, pid_namespace. Empty where /proc does not tell. Never
    raises."""
    try:
        return {"pid": os.getpid(), "start_ticks": load_stat(os.getpid()).start_ticks, **_place()}
    except (OSError, ValueError):
        return {}


def own_start() -> float | None:
    """The time at which this process began, in Unix time; None where /proc does not tell."""
    try:
        return time.time() - max(load_stat(os.getpid()).age_seconds, 0.0)
    except (OSError, ValueError):
        return None


def state_of(process: Mapping[str, Any] | None) -> str | None:
    """RUNS, STOPPED (by a signal or a debugger) or GONE; None where this machine cannot tell. `process`: what
    own_identity() gave, from a file that need not be trusted."""
    pid, start = (process or {}).get("pid"), (process or {}).get("start_ticks")
    if not process or not (isinstance(pid, int) and isinstance(start, int) and pid > 0):
        return None
    try:
        place = _place()
        if any(process.get(name) != value for name, value in place.items()):
            return None
        stat = load_stat(pid)
    except FileNotFoundError:
        return GONE if os.path.exists("/proc/self/stat") else None
    except (OSError, ValueError, OverflowError):
        return None
    if stat.start_ticks != start or stat.has_ended or stat.is_exiting:
        return GONE
    return STOPPED if stat.state in _STOPPED_STATES else RUNS


def _place() -> dict[str, str]:
    return {"boot_id": boot_id(), "pid_namespace": os.readlink("/proc/self/ns/pid")}


def boot_id() -> str:
    """The kernel's id of this boot. Raises OSError."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


# The end of a process that is not our child: its wait status from the kernel, by a pidfd or while it is a zombie.
# Standard library only.

_INFO: Final = struct.Struct("<QQ11Ii")  # struct pidfd_info, version 0 (include/uapi/linux/pidfd.h): mask ... exit_code
_GET_INFO: Final = 0xC000FF0B | _INFO.size << 16  # PIDFD_GET_INFO, _IOWR(0xFF, 11, struct pidfd_info); Linux 6.13
_WITH_EXIT: Final = 1 << 3  # PIDFD_INFO_EXIT; Linux 6.15, for processes that their parent has waited for


class ExitStatus(NamedTuple):
    """`code` where the process left by itself, `signal` (`SIGKILL`) where a signal ended it."""

    code: int | None = None
    signal: str = ""


def of_wait_status(status: int | None) -> ExitStatus | None:
    if status is None:
        return None
    if os.WIFSIGNALED(status):
        return ExitStatus(signal=signal_name(os.WTERMSIG(status)))
    return ExitStatus(os.WEXITSTATUS(status))


def wait_status(pidfd: int, pid: int) -> int | None:
    """The wait status of a process that has ended. None where the kernel does not tell: of a zombie it does to root
    alone, of one that is gone from Linux 6.15 on."""
    status = zombie_status(pid, os.geteuid() == 0)
    return status if status is not None or pidfd < 0 else _status_of_pidfd(pidfd)


def zombie_status(pid: int, may_know: bool) -> int | None:
    """The wait status of a process that its parent has not waited for. None where it is no zombie any more, or where a
    0 may stand for `not permitted to know`: to know takes CAP_SYS_PTRACE."""
    stat = read_stat(pid)
    if stat is None:
        return None
    status = stat.wait_status
    if stat.state == "Z":
        return status if status or may_know else None
    return status if status and stat.is_exiting else None  # it may not be set yet


def _status_of_pidfd(pidfd: int) -> int | None:
    info = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info, True)
    except OSError:  # an older kernel, or not waited for yet
        return None
    mask, *_, exit_code = _INFO.unpack(info)
    return int(exit_code) if mask & _WITH_EXIT else None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def cgroup_files(lines: str, controller: str, name: str, name_of_version_1: str, root: str) -> list[str]:
    """The files that may have a controller's counts. `lines`: of /proc/PID/cgroup; `root`: /sys/fs/cgroup. A path
    outside of our own cgroup namespace is left out."""
    found: list[str] = []
    for line in lines.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if ".." in path.split("/"):
            continue
        if controller in controllers.split(","):
            found.append(f"{root}/{controller}{path}/{name_of_version_1}")
        elif hierarchy == "0":
            found += [f"{root}{path}/{name}", f"{root}/unified{path}/{name}"]
    return found


# The time for which a process's threads ran, and for which they waited for a CPU: in the run queue behind others, or
# held back by a quota of their cgroup. Standard library only.
#
# The kernel counts both: /proc/PID/task/TID/schedstat has the time on a CPU and the time in the run queue (Linux,
# Documentation/scheduler/sched-stats.rst), the cgroup's cpu.stat the time for which its quota held it back.

MAX_THREADS: Final = 64
"""The oldest of a process: those that train, and not those of a hundred loaders."""
_MAX_BYTES: Final = 16_384
_THROTTLED: Final = re.compile(r"^throttled_(usec|time) (\d+)$", re.MULTILINE)  # of version 2, in us; of 1, in ns


class ThreadTimes(NamedTuple):
    """Cumulative times in seconds. `threads`: by thread, on a CPU and in the run queue."""

    threads: dict[str, tuple[float, float]]
    throttled: float


def read_thread_times(pid: int | str, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> ThreadTimes:
    """The times of a process, or of `self`. Raises OSError, ValueError: it ended, or the kernel does not count."""
    tasks = f"{proc}/{pid}/task"
    threads = {}
    for thread in os.listdir(tasks)[:MAX_THREADS]:  # in the order in which they began; numbers are used again
        running, queued, *_ = read_text(f"{tasks}/{thread}/schedstat").split()
        threads[thread] = int(running) / 1e9, int(queued) / 1e9
    files = cgroup_files(read_text(f"{proc}/{pid}/cgroup"), "cpu", "cpu.stat", "cpu.stat", cgroups)
    return ThreadTimes(threads, sum(map(_throttled, files)))


def ran_and_queued(first: ThreadTimes, last: ThreadTimes) -> tuple[float, float]:
    """The seconds that the threads of `last` ran, and that they were in the run queue, since `first`, all together."""
    nothing = (0.0, 0.0)
    pairs = [(first.threads.get(thread, nothing), times) for thread, times in last.threads.items()]
    running = sum(max(0.0, after[0] - before[0]) for before, after in pairs)
    return running, sum(max(0.0, after[1] - before[1]) for before, after in pairs)


def _throttled(path: str) -> float:
    try:
        found = _THROTTLED.search(read_text(path))
    except OSError:
        return 0.0
    return int(found[2]) / (1e6 if found[1] == "usec" else 1e9) if found else 0.0


def read_text(path: str) -> str:
    """The beginning of a file of the kernel's, 16 KiB of it. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace")


# The way in which laggard starts a process of its own. Standard library only.

_START: Final = (
    "import runpy, sys; del sys.path[0]; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
_ROOT: Final = os.path.dirname(os.path.abspath(laggard.__path__[0]))
"""The folder that has the package, wherever in it this module stands."""


def own_process(module: str, *words: str) -> tuple[str, ...]:
    """The command that runs a module of this laggard, as `python -m` does. The child finds laggard also where this
    Python finds it by a launcher alone; and it imports nothing from the working directory,
    which any user may write."""
    flags = [flag for flag, is_set in (("-s", sys.flags.no_user_site), ("-E", sys.flags.ignore_environment)) if is_set]
    return (sys.executable, *flags, "-c", _START, _ROOT, module, *words)
