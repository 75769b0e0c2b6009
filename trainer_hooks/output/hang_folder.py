"""Keeps what a rank knows of a standstill in a folder, before a scheduler or torch's watchdog ends the job: its stacks,
where it stood in its collectives, the dump of torch's Flight Recorder where that is on, which ranks beside it could
write nothing themselves, and what NCCL RAS tells of all ranks.

The ranks of a job share the folder `hang-TIME`: the first makes it, the others look for one that is a few minutes old.
In a folder that users or jobs may share, it lies in one of the user's and the job's own.
A process that comes to no step (witness.py) leaves its stacks there too.
`laggard diagnose FOLDER` reads it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from laggard.kit.environment import ENV_HANG_DIR
from laggard.nccl.ras import DEFAULT_PORT, RasError, ask
from laggard.rankfile import RankFileError, RankFileReader
from laggard.rankfile.layout import SUFFIX as RANK_SUFFIX
from laggard.rankfile.layout import own_folder
from laggard.stacks.fault_text import MAX_TEXT, faults_of
from laggard.stacks.fault_text import SUFFIX as FAULT_SUFFIX
from laggard.stacks.kernel_side import SUFFIX as UNANSWERED_SUFFIX
from laggard.stacks.kernel_side import NotThere, Unanswered, encode, read_kernel_side
from laggard.stacks.sampled import SUFFIX, Sampled, SampledError, read_small_file, write, write_private
from laggard.trainer_hooks.collectives.flight_recorder import dump_functions, safe_backends, seen_backends
from laggard.trainer_hooks.output.local_ranks import rank_files_beside

log = logging.getLogger("laggard")

# Asks the NCCL RAS of this job, in whose processes NCCL has a thread that answers whatever the training does, what it
# knows of a standstill.
#
# It runs on a thread of its own, since an answer may take NCCL ten seconds. Nobody else's RAS is asked: all who listen
# at the port have to be this user's, and the answer has to name this process.

_TRIES: Final = 2  # where several jobs of a user listen, a connection reaches any of them
_LISTENS: Final = "0A"  # TCP_LISTEN, include/net/tcp_states.h
_MAX_BYTES: Final = 4 << 20
_TABLES: Final = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


class _Listener(NamedTuple):
    host: str
    owner: int


def report_later(told: Callable[[bytes], None]) -> None:
    """Has told(...) called, on a thread, with what this job's RAS answers in JSON; never where nobody listens or there
    is no good answer. Raises RuntimeError where no thread can be had."""
    threading.Thread(target=_report, args=(told,), name="laggard-ras", daemon=True).start()


def _report(told: Callable[[bytes], None]) -> None:
    try:
        answer = own_report(os.environ)
        if answer:
            told(answer)
    except (OSError, ValueError):  # the folder is gone, or full
        return


def own_report(environ: Mapping[str, str], tables: tuple[str, ...] = _TABLES) -> bytes:
    """Returns the answer of this job's RAS; empty where there is none."""
    port = _port(environ)
    listeners = [each for table in tables for each in _listeners(table, port)]
    if not listeners or any(each.owner != os.geteuid() for each in listeners):
        return b""
    for _ in range(_TRIES):
        try:
            answer = ask(listeners[0].host, port)
        except RasError:
            return b""
        if re.search(rb'"pid": ?%d\b' % os.getpid(), answer):
            return answer
    return b""


def _port(environ: Mapping[str, str]) -> int:
    port = environ.get("NCCL_RAS_ADDR", "").rpartition(":")[2]
    return int(port) if port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16 else DEFAULT_PORT


def _listeners(table: str, port: int) -> list[_Listener]:
    """Those of a table of sockets as proc(5) describes it: `N: ADDRESS:PORT ADDRESS:PORT STATE ... UID ...`."""
    try:
        with open(table, "rb") as file:
            lines = file.read(_MAX_BYTES).decode("ascii", "replace").splitlines()[1:]
    except OSError:
        return []
    rows = (line.split() for line in lines)
    wanted = f"{port:04X}"
    return [
        _Listener(_host(address), int(row[7]))
        for row in rows
        if len(row) > 7 and row[3] == _LISTENS and row[7].isdecimal()
        for address, _, its_port in [row[1].partition(":")]
        if its_port == wanted
    ]


def _host(address: str) -> str:
    """The address to connect to: each word of four bytes is written as a number of this machine's order."""
    words = [int(address[place : place + 8], 16).to_bytes(4, sys.byteorder) for place in range(0, len(address), 8)]
    raw = b"".join(words)
    if not any(raw):
        return "127.0.0.1" if len(raw) == 4 else "::1"
    import ipaddress  # few need it

    return str(ipaddress.ip_address(raw))


SHARED_SECONDS: Final = 600.0
"""The age up to which a folder that another rank made is of the same standstill."""

MAX_FOLDERS: Final = 8
"""The most folders in one place: a job that stands still again and again fills no disk."""

RAS_REPORT: Final = "ras-report.json"
MAX_DUMP_BYTES: Final = 16 << 20
_NAME: Final = re.compile(r"hang-\d{8}T\d{6}Z")
_MAX_NAME: Final = 200  # bytes


class HangFolder:
    """The folder of one rank. `base`: where it is made unless LAGGARD_HANG_DIR names a place. `events` returns where
    the rank stands, for JSON. `rank_file`: this rank's own; None: there is none. `recorded`: the path, without its end,
    at which a rank's recording has its files; None: there is no recording."""

    def __init__(
        self,
        base: str | None,
        rank: int,
        events: Callable[[], dict[str, Any]],
        rank_file: str | None = None,
        recorded: Callable[[int], str] | None = None,
    ) -> None:
        self._base = base
        self._rank = rank
        self._events = events
        self._rank_file = rank_file
        self._recorded = recorded

    def keep(self, sampled: Sampled) -> None:
        """Writes all of it. Raises OSError."""
        base = hang_base(os.environ, sampled.job_id) or self._base
        folder, is_new = shared_folder(base, sampled.at) if base else (None, False)
        if folder is None:
            return
        name = os.path.join(folder, f"rank-{self._rank}")
        write(name + SUFFIX, sampled)
        events = self._events()
        write_private(f"{name}.events.json", json.dumps(events).encode("ascii"))
        for number, dump in enumerate(_flight_recorder()):
            recorder = (
                f"flight_recorder{f'-{number}' if number else ''}_{self._rank}.json"  # its rank is read of the end
            )
            write_private(os.path.join(folder, recorder), dump)
        self._keep_silent_peers(folder, sampled)
        # NCCL has crashed where it was asked during its initialisation (NVIDIA/nccl#1669): a first step has that behind
        # it. Each question costs all ranks, so one rank asks, once.
        if is_new and events.get("step"):
            with contextlib.suppress(RuntimeError):
                report_later(partial(write_private, os.path.join(folder, RAS_REPORT)))

    def _keep_silent_peers(self, folder: str, sampled: Sampled) -> None:
        """Writes what is seen of ranks that can write nothing; the last rank that looked counts."""
        if self._rank_file is None:
            return
        idle_seconds = sampled.stalled_seconds / 2  # they came to their place about when this one began to wait
        for peer in silent_peers(self._rank_file, sampled.job_id, self._rank, idle_seconds):
            rank = peer.seen.rank
            write_private(os.path.join(folder, f"rank-{rank}{UNANSWERED_SUFFIX}"), encode(peer.seen))
            keep_faults(peer, self._recorded(rank) if self._recorded else None, os.path.join(folder, f"rank-{rank}"))


def hang_base(environ: Mapping[str, str], job: str) -> str | None:
    """The folder of this user's job in LAGGARD_HANG_DIR; None where that is not set. Others' folders there count for
    nothing. Raises OSError."""
    base = environ.get(ENV_HANG_DIR)
    if not base:
        return None
    os.makedirs(base, exist_ok=True)
    own = own_folder(os.path.join(base, str(os.geteuid())))
    return own_folder(os.path.join(own, f"job-{quote(job, safe='')}"[:_MAX_NAME]))


def shared_folder(base: str, now: float) -> tuple[str | None, bool]:
    """The folder in `base` of the standstill at `now` (Unix time), None where there are too many; and whether this
    process made it. Raises OSError."""
    os.makedirs(base, exist_ok=True)
    names = [name for name in sorted(os.listdir(base)) if _NAME.fullmatch(name) and _is_own(os.path.join(base, name))]
    for name in reversed(names):
        path = os.path.join(base, name)
        if abs(now - os.lstat(path).st_mtime) < SHARED_SECONDS:  # the mtime of the last rank that came
            return path, False
    if len(names) >= MAX_FOLDERS:
        log.warning("laggard: a standstill is not kept: %s has %d already; remove what is read", base, len(names))
        return None, False
    path = os.path.join(base, time.strftime("hang-%Y%m%dT%H%M%SZ", time.gmtime(now)))
    is_new = not os.path.lexists(path)
    return own_folder(path), is_new


def _is_own(path: str) -> bool:
    try:
        return own_folder(path) == path
    except OSError:
        return False


def _flight_recorder() -> list[bytes]:
    """The dumps of torch's recorders with their entries, as JSON; none where torch keeps none, where it is not safe to
    ask, and where one is larger than MAX_DUMP_BYTES."""
    found = []
    for dump in dump_functions(safe_backends(seen_backends())):
        with contextlib.suppress(Exception):  # torch's, of whatever version
            text = dump(True, False)
            raw = text.encode() if isinstance(text, str) else text
            if raw and len(raw) <= MAX_DUMP_BYTES and b'"entries"' in raw:
                found.append(raw)
    return found


# The ranks of this job on this machine that cannot take their own stacks: stopped, in the kernel, or with Python's lock
# held. A rank beside them sees in their rank files that nothing of them runs, and in /proc where they stand.

MAX_FILES: Final = 256
"""The most rank files that are looked at: those of one user on one machine."""

SILENT_BEATS: Final = 3.0
"""The missed beats after which none of a process's threads runs, as locate has it; and a second more."""


class SilentPeer(NamedTuple):
    """What is seen of a rank that can say nothing itself. `rank_file`: its path."""

    seen: Unanswered
    rank_file: str


def silent_peers(own_file: str, job_id: str, rank: int, idle_seconds: float) -> Iterator[SilentPeer]:
    """Yields the other ranks of the user's job of which nothing runs, and that have made no progress for so long.
    `own_file`: this rank's file."""
    for path in rank_files_beside(own_file, MAX_FILES):
        try:
            with RankFileReader(path) as file:
                seen = _seen(file, idle_seconds)
        except (RankFileError, NotThere, OSError, ValueError, KeyError):
            continue
        if seen is not None and seen.job_id == job_id and seen.rank != rank:
            yield SilentPeer(seen, path)


def _seen(file: RankFileReader, idle_seconds: float) -> Unanswered | None:
    """Raises RankFileError and NotThere."""
    pid, beat, now = file.lock_holder(), file.beat(), time.monotonic_ns()
    if file.owner != os.geteuid() or not pid or beat is None:
        return None
    identity = file.identity
    if (now - (file.live_state().progress_ns or identity["monotonic_ns"])) / 1e9 < idle_seconds:
        return None
    side = read_kernel_side(pid, pid, file.owner, whole=False)
    silent = (now - beat.at_ns) / 1e9
    if not side.stands and silent < SILENT_BEATS * beat.interval_ns / 1e9 + 1.0:
        return None
    return Unanswered(identity["job_id"], identity["rank"], identity["node"], pid, time.time(), silent, side)


# The lines at which a silent rank stands, which faulthandler has written for it: while C code holds Python's lock, the
# rank itself can bring them nowhere. The file lies in the rank's recording, where one is made, and else beside its rank
# file; the agent reads the second place alone, and who is handed a hang folder has neither.


def keep_faults(peer: SilentPeer, recorded: str | None, kept: str) -> None:
    """Copies the rank's dumps, where there are any, to `kept`, and beside its rank file. `recorded`: where its
    recording has its files; both are paths without their end. A copy that fails is left out: it must not cost what else
    is kept of the standstill."""
    beside = peer.rank_file.removesuffix(RANK_SUFFIX)
    for base in (recorded, beside):
        found = _dumps(base + FAULT_SUFFIX, peer) if base else None
        if found is None:
            continue
        text, changed = found
        for target in (kept, beside):
            if target != base:
                with contextlib.suppress(OSError):
                    write_private(target + FAULT_SUFFIX, text)
                    os.utime(target + FAULT_SUFFIX, (changed, changed))  # that of the dump
        return


def _dumps(path: str, peer: SilentPeer) -> tuple[bytes, float] | None:
    """The file's text and the Unix time of its last dump; None where it has none of this process."""
    with contextlib.suppress(OSError, SampledError):
        changed = os.stat(path, follow_symlinks=False).st_mtime
        text = read_small_file(path, MAX_TEXT, os.geteuid())
        dumped = faults_of(text, changed)
        if dumped is not None and (dumped.rank, dumped.pid) == (peer.seen.rank, peer.seen.pid):
            return text, changed
    return None
