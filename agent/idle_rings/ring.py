"""One ring on this node, while the node stays idle: its process is started, watched, and ended when a job comes."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from laggard.agent.idle_rings.arrivals import Arrivals, processes_of_session
from laggard.agent.idle_rings.state import StateFolder
from laggard.errors import UsageError
from laggard.processes.own import own_process
from laggard.rings.order import MAX_BYTES, MODULE, RingEnd, RingOrder
from laggard.wire import WireError, decode, encode

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
