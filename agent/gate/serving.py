"""The agent's part for prologs: the socket, and what the agent knows of itself, put together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from laggard.acknowledge.kept_file import KeptFileError, read_kept
from laggard.agent.gate.listener import open_listener
from laggard.agent.gate.question import Answer, Question
from laggard.agent.gate.quick_answer import Now, Own, quick_answer
from laggard.agent.gate.server import GateServer
from laggard.agent.prober.loop import ProbeLoop, uptime
from laggard.agent.prober.variants import KnownProbes
from laggard.constants import ACKNOWLEDGED_FILE
from laggard.probes.gate_question import gate_profile
from laggard.wire.acknowledgement import Acknowledgement

_BOOT: str = "/proc/sys/kernel/random/boot_id"


@contextmanager
def answering_prologs(path: str, loop: ProbeLoop, probes: KnownProbes) -> Iterator[None]:
    """Answers prologs at the socket `path` meanwhile; empty: none."""
    listener = open_listener(path) if path else None
    if listener is None:
        yield
        return
    own, known = own_facts(probes), KeptAcknowledgements(ACKNOWLEDGED_FILE)

    def judge(question: Question) -> Answer:
        return quick_answer(question, own, loop.latest, Now(uptime(), time.time()), known.get())

    server = GateServer(listener, loop, judge)
    server.start()
    try:
        yield
    finally:
        server.stop()


class KeptAcknowledgements:
    """What is acknowledged on this node. The file is read again where it has changed; one that cannot be used
    acknowledges nothing, and the gate then says why."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: tuple[int, int, int] | None = None
        self._known: tuple[Acknowledgement, ...] = ()

    def get(self) -> tuple[Acknowledgement, ...]:
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except OSError:
            self._read, self._known = None, ()
            return ()
        now = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        if now != self._read:
            self._read, self._known = now, self._kept()
        return self._known

    def _kept(self) -> tuple[Acknowledgement, ...]:
        try:
            return read_kept(self._path)
        except KeptFileError:
            return ()


def own_facts(probes: KnownProbes) -> Own:
    return Own(
        fingerprint=probes.fingerprint,
        boot=boot_id(),
        probes=probes.gate,
        variants=probes.variants,
        max_age_seconds=gate_profile().agent_seconds,
        sees_processes=sees_processes(),
    )


def sees_processes() -> bool:
    """Whether the kernel shows all processes here: with number 2 its own thread kthreadd, which is in the first PID
    namespace alone, and which hidepid hides."""
    try:
        with open("/proc/2/comm", encoding="ascii") as file:
            return file.read().strip() == "kthreadd"
    except OSError:
        return False


def boot_id() -> str:
    with open(_BOOT, encoding="ascii") as file:
        return file.read().strip()
