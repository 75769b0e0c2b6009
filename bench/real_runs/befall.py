"""What befalls a running job from outside: quotas, busy neighbours, signals, links and disks. Needs root.

Each is a with statement around the rest of the job's life, and leaves nothing behind. cgroups are those of version 1,
as far as the machine has them."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from support.namespaces import Namespaces

CGROUPS: Final = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS: Final = 20_000
ONE_SHARE, ALL_SHARE = 0.15, 0.40
"""Of one CPU: for a single rank, and for every rank alike."""
HOGS, HELPERS = 4, 3
DISK_BYTES_PER_SECOND: Final = 1 << 20
LINK_RATE, SLOW_RATE = "400mbit", "40mbit"


class CannotBefall(Exception):
    """This machine cannot do that to a process; the text says why."""


@contextlib.contextmanager
def befall(fault: str, pids: Sequence[int], victim: int, nodes: Namespaces | None, disk: Path) -> Iterator[None]:
    """Has the fault befall the job's processes, of which `pids[victim]` is the victim's. Raises CannotBefall."""
    with contextlib.ExitStack() as until:
        if fault == "quota":
            until.enter_context(quota([pids[victim]], ONE_SHARE))
        elif fault == "all_slow":
            for pid in pids:
                until.enter_context(quota([pid], ALL_SHARE))
        elif fault == "hog":
            bind(pids[victim], last_cpu())
            until.enter_context(busy(HOGS, last_cpu()))
        elif fault == "taskset":
            bind(pids[victim], last_cpu())
            for task in tasks_of(pids[victim]):
                os.setpriority(os.PRIO_PROCESS, task, 5)
            until.enter_context(busy(HELPERS, last_cpu()))
        elif fault == "disk":
            until.enter_context(throttled(pids[victim], disk))
        elif fault == "link":
            assert nodes is not None
            nodes.shape(victim, SLOW_RATE)
        elif fault == "pair":
            assert nodes is not None
            nodes.shape_link(victim, victim + 1, SLOW_RATE)
        elif fault in ("sigstop", "sigkill"):
            os.kill(pids[victim], signal.SIGSTOP if fault == "sigstop" else signal.SIGKILL)
        yield


def tasks_of(pid: int) -> list[int]:
    """The threads of a process, those of gloo and of the hooks among them."""
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def bind(pid: int, cpu: int) -> None:
    for task in tasks_of(pid):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(task, {cpu})


def last_cpu() -> int:
    return max(os.sched_getaffinity(0))


@contextlib.contextmanager
def group(controller: str, settings: dict[str, str], pids: Sequence[int]) -> Iterator[None]:
    """A cgroup with these settings and processes, which go back where they were."""
    root = CGROUPS / controller
    if not (root / "cgroup.procs").exists():
        raise CannotBefall(f"this machine has no cgroup controller {controller} of version 1")
    place = root / f"laggard-real-{os.getpid()}-{pids[0]}"
    place.mkdir()
    try:
        for name, value in settings.items():
            (place / name).write_text(value)
        for pid in pids:
            (place / "cgroup.procs").write_text(str(pid))
        yield
    except OSError as error:
        raise CannotBefall(f"{controller}: {error}") from error
    finally:
        for pid in (place / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (root / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            place.rmdir()


def quota(pids: Sequence[int], share: float) -> contextlib.AbstractContextManager[None]:
    """These processes get this share of one CPU together."""
    settings = {
        "cpu.cfs_period_us": str(PERIOD_MICROSECONDS),
        "cpu.cfs_quota_us": str(int(PERIOD_MICROSECONDS * share)),
    }
    return group("cpu", settings, pids)


def throttled(pid: int, disk: Path) -> contextlib.AbstractContextManager[None]:
    """The process reads from the device of that file at DISK_BYTES_PER_SECOND."""
    device = os.stat(disk).st_dev
    setting = f"{os.major(device)}:{os.minor(device)} {DISK_BYTES_PER_SECOND}"
    return group("blkio", {"blkio.throttle.read_bps_device": setting}, [pid])


@contextlib.contextmanager
def busy(count: int, cpu: int) -> Iterator[None]:
    """So many processes that never rest, bound to a CPU."""
    program = (
        f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile os.getppid() == {os.getpid()}:\n    sum(range(9999))"
    )
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()
