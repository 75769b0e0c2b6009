"""One ring on this node, while the node stays idle: its process is started, watched, and ended when a job comes."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from laggard.agent.idle_rings.state import StateFolder
from laggard.agent.ranks.reader import RankFiles
from laggard.kit.errors import UsageError
from laggard.kit.processes import own_process, read_stat
from laggard.probes.gpu.busy import BusyThresholds
from laggard.probes.gpu.model.services import is_service
from laggard.probes.nvml.live import failure_name
from laggard.rings.membership import MAX_BYTES, MODULE, RingEnd, RingOrder
from laggard.wire import WireError, decode, encode

# The processes on the GPUs, by NVML, again and again: for who has to make room for them. A call may never return where
# the driver hangs.


class NvmlUnreadable(Exception):
    """NVML does not tell. The text says why."""


_NO_GPUS = frozenset({"LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED"})


class GpuProcesses:
    """NVML, opened once."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []

    def pids(self) -> frozenset[int] | None:
        """Returns the ids of the processes that compute on any GPU; None: the machine has no NVIDIA GPU or driver.
        Raises NvmlUnreadable."""
        try:
            if self._nvml is None:
                self._open()
            found = [self._nvml.nvmlDeviceGetComputeRunningProcesses(handle) for handle in self._handles]
        except ImportError as error:
            raise NvmlUnreadable(f"nvidia-ml-py is not installed ({error})") from None
        except Exception as error:
            self._nvml = None
            if failure_name(error) in _NO_GPUS:
                return None
            raise NvmlUnreadable(f"NVML fails ({failure_name(error)})") from None
        return frozenset(int(process.pid) for own in found for process in own)

    def _open(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._nvml = pynvml


# The signs that a job has come to this node: a step of SLURM's, a rank that laggard's hooks watch, or a process on a
# GPU. They are looked for ten times a second while a ring runs, so each look is short.

_STEP: Final = "slurmstepd"
_YOUNG_SECONDS: Final = 5.0
"""The time for which a process may still become another one, by execve()."""
_GPU_PAUSE_SECONDS: Final = 0.1
_GPU_PATIENCE_SECONDS: Final = 5.0


class _Seen(NamedTuple):
    name: str
    since: float


class Arrivals:
    """`own_session`: the session whose processes are the ring's own; None: no ring runs."""

    def __init__(self, rank_files: RankFiles, gpus: GpuWatch, proc: str = "/proc") -> None:
        self._rank_files, self._gpus, self._proc = rank_files, gpus, proc
        self._seen: dict[int, _Seen] = {}

    def look(self, own_session: int | None = None) -> str:
        """Returns what has come, in a few words; empty: the node is idle."""
        return self._step() or self._rank() or self._gpus.stranger(own_session)

    def _step(self) -> str:
        now, seen = time.monotonic(), {}
        for entry in os.listdir(self._proc):
            if entry.isdecimal():
                pid = int(entry)
                known = self._seen.get(pid)
                if known is None or now - known.since < _YOUNG_SECONDS:
                    known = _Seen(process_name(pid, self._proc), now if known is None else known.since)
                seen[pid] = known
        self._seen = seen
        steps = [pid for pid, each in seen.items() if each.name == _STEP and self._is_jobs(pid)]
        return f"a job of SLURM (process {steps[0]}, {_STEP})" if steps else ""

    def _is_jobs(self, pid: int) -> bool:
        """Whether root runs it, and it is no keeper: with cgroup v2 `slurmstepd infinity` holds the cgroup that all
        steps are in. A user's process of that name is not looked at: its memory, which holds its command, may be made
        so that nobody's read of it returns."""
        if not is_service(_reader(self._proc), pid, (_STEP,)):
            return False
        with contextlib.suppress(OSError), open(f"{self._proc}/{pid}/cmdline", "rb") as file:
            return not file.read(256).rstrip(b"\0").endswith(b"\0infinity")
        return False  # it has ended

    def _rank(self) -> str:
        running = [row for row in self._rank_files.read().ranks if row.state == "running"]
        return f"rank {running[0].rank} of job {running[0].job_id[:80]}" if running else ""


class GpuWatch:
    """Looks at the GPUs' processes on a thread of its own, since a call into a driver that hangs never returns."""

    def __init__(self, find: Callable[[], Collection[int] | None], ignore: Collection[str] = BusyThresholds().ignore):
        """`find` returns the ids of all processes on GPUs; None: there are no GPUs. Raises NvmlUnreadable."""
        self._find, self._ignore = find, frozenset(ignore)
        self._pids: frozenset[int] = frozenset()
        self._failure = ""
        self._looked_at = time.monotonic()
        self._has_gpus = True
        self._first_look = threading.Event()
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def stranger(self, own_session: int | None) -> str:
        """Returns which process, of none of the ring's and no service, is on a GPU; or why that cannot be told."""
        if not self._first_look.wait(_GPU_PATIENCE_SECONDS) or (
            self._has_gpus and time.monotonic() - self._looked_at > _GPU_PATIENCE_SECONDS
        ):
            return "NVML does not answer, so that a job would not be seen"
        if self._failure:
            return self._failure
        for pid in self._pids:
            if not is_service(_reader("/proc"), pid, self._ignore) and not _is_own(pid, own_session):
                name = process_name(pid)
                return f"process {pid}{f' ({name})' if name else ''} on a GPU"
        return ""

    def _run(self) -> None:
        while True:
            try:
                pids = self._find()
                self._pids, self._failure = frozenset(pids or ()), ""
            except NvmlUnreadable as error:
                pids, self._failure = (), f"{error}, so that a job would not be seen"
            self._looked_at, self._has_gpus = time.monotonic(), pids is not None
            self._first_look.set()
            if pids is None:
                return
            time.sleep(_GPU_PAUSE_SECONDS)


def make_arrivals(rank_dir: str, node: str) -> Arrivals:
    return Arrivals(RankFiles(rank_dir, node), GpuWatch(GpuProcesses().pids))


def hidden_processes(proc: str = "/proc") -> bool:
    """Whether other users' processes are hidden from this one (mount option hidepid): a job would not be seen."""
    return not os.path.exists(f"{proc}/1/comm") or not os.access(f"{proc}/1/comm", os.R_OK)


def process_name(pid: int, proc: str = "/proc") -> str:
    """The first 15 characters; empty where the process has ended."""
    with contextlib.suppress(OSError), open(f"{proc}/{pid}/comm", "rb") as file:
        return file.read(64).strip().decode(errors="replace")
    return ""


def _reader(proc: str) -> Callable[[str], str]:
    """Reads files of processes; empty text where that is not possible. No file is read that a process can hold up."""

    def read(path: str) -> str:
        with contextlib.suppress(OSError), open(proc + path.removeprefix("/proc"), "rb") as file:
            return file.read(16_384).decode(errors="replace")
        return ""

    return read


def _is_own(pid: int, session: int | None) -> bool:
    return session is not None and session_of(pid) == session


def session_of(pid: int, proc: str = "/proc") -> int:
    """0 where the process has ended."""
    stat = read_stat(pid, proc)
    return stat.session if stat else 0


def processes_of_session(session: int, proc: str = "/proc") -> list[int]:
    """The processes that live; one that has ended, and whose parent has not yet asked how, is none."""
    each = ((int(pid), read_stat(pid, proc)) for pid in os.listdir(proc) if pid.isdecimal())
    return [pid for pid, stat in each if stat and stat.session == session and not stat.has_ended]


log = logging.getLogger("laggard.idle_rings")

LOOK_SECONDS: Final = 0.1
"""The time from one look for a job to the next."""
_LEAVE_SECONDS: Final = 0.4
"""The time for telling the other nodes why this one goes; its ranks have ended before."""
_END_SECONDS: Final = 30.0
"""The time for which the kernel is waited for, which ends a process on a GPU only once the driver lets go of it."""
_EXTRA_SECONDS: Final = 15.0


class RingOutcome(NamedTuple):
    """`outcome` is one of state.OUTCOMES. `came`: the job for which the ring was ended, and `abort_seconds` how long
    that took, from the look that saw it to the end of the last process."""

    outcome: str
    text: str
    end: RingEnd | None = None
    came: str = ""
    abort_seconds: float | None = None


def run_ring(
    order: RingOrder, user: str, arrivals: Arrivals, state: StateFolder, is_stopped: Callable[[], bool]
) -> RingOutcome:
    """Returns when all processes of the ring have ended."""
    try:
        process = _start(order, user)
    except OSError as error:
        why = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        return RingOutcome("unknown", f"the ring's process cannot be started as its user ({why})")
    state.note_running(process.pid)
    try:
        until = time.monotonic() + order.deadline_seconds + _EXTRA_SECONDS
        return _watch(process, arrivals, until, is_stopped)
    finally:
        end_processes(process)
        state.note_running(None)


def _start(order: RingOrder, user: str) -> subprocess.Popen[bytes]:
    """Starts it in a session of its own, by which its processes are known. In `/`,
    which no user can take away."""
    process = subprocess.Popen(
        own_process(MODULE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        cwd="/",
        start_new_session=True,
        env=_environ(),
        **_without_privileges(user),
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # how it ended is told below
        process.stdin.write(encode(order) + b"\n")
    return process


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("LAGGARD_RING_TOKEN", "NOTIFY_SOCKET")}


def _without_privileges(user: str) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    entry = find_user(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": os.getgrouplist(user, entry.pw_gid)}


def find_user(user: str) -> pwd.struct_passwd:
    """Raises UsageError."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise UsageError(
            f"user {user!r} does not exist: give the user of the ring's processes, who is not root"
        ) from None
    if entry.pw_uid == 0:
        raise UsageError(f"user {user!r} is root: give one without rights for the ring's processes")
    return entry


def _watch(
    process: subprocess.Popen[bytes], arrivals: Arrivals, until: float, is_stopped: Callable[[], bool]
) -> RingOutcome:
    assert process.stdout is not None
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            came = arrivals.look(process.pid)
            if came:
                began = time.monotonic()
                end_processes(process)
                return RingOutcome("job_came", came, came=came, abort_seconds=time.monotonic() - began)
            if is_stopped():
                return RingOutcome("stopped", "laggard agent --idle-rings is stopping")
            if time.monotonic() > until:
                return RingOutcome("unknown", "the ring's process did not end by its deadline")
            if selector.select(LOOK_SECONDS):
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                data += chunk
                if not chunk or data.endswith(b"\n") or len(data) > MAX_BYTES:
                    return _outcome(process, bytes(data))


def _outcome(process: subprocess.Popen[bytes], data: bytes) -> RingOutcome:
    try:
        end = decode(data, RingEnd)
    except WireError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_SECONDS)
        return RingOutcome("unknown", f"the ring's process ended without an answer (status {process.poll()})")
    share = end.share
    if share is None:
        return RingOutcome("unknown", end.text or "the ring came to no end", end)
    if share.findings:
        return RingOutcome("fail", f"{share.findings[0].code} {share.findings[0].device}", end)
    if share.unknown:
        return RingOutcome("unknown", share.unknown, end)
    return RingOutcome("ok", f"{share.judged} nodes measured one another", end)


def end_processes(process: subprocess.Popen[bytes]) -> None:
    """Ends all of the ring's processes: it is told, which ends its ranks, and is killed with them where it does not end
    by itself. Returns when none is left."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LEAVE_SECONDS)
    until = time.monotonic() + _END_SECONDS
    while left := processes_of_session(process.pid):
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        if time.monotonic() > until:
            log.error("processes of the ring do not end: %s", ", ".join(map(str, left[:8])))
            break
        time.sleep(0.005)
    process.poll()
    process.stdout.close()
