"""Answers prologs at the Unix socket: hundreds at once, on one thread that never waits for any of them.

A question that the last round does not settle is held while the agent runs what it lacks, once for all who wait. Who
asks too slowly, too much or nothing is sent away, and so is who is neither root nor the agent's own user.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from laggard.agent.prober.loop import ROUND, ProbeLoop, uptime
from laggard.agent.sock_diag import peer_of
from laggard.probes.profiles import PROFILE, SCHEMA
from laggard.probes.runner.report import parse_gpus

MAX_WAIT_SECONDS: Final = 60.0

_PATH: Final = re.compile(
    rf"/{SCHEMA}/{PROFILE}/"
    r"(?P<fingerprint>[0-9a-f]{32})/(?P<boot>[0-9a-f-]{36})/(?P<newer>[0-9]{1,12})/"
    r"(?P<gpus>-|[0-9,-]{1,128})/(?P<wait>[0-9]{1,6})"
)


class WrongQuestion(ValueError):
    """It is no question of this schema."""


class Question(NamedTuple):
    """`fingerprint`: what the gate would judge (probes/choose.py). `boot`: the kernel's boot id, as the prolog
    sees it. `newer`: the report must be of a round that began a second after this uptime (seconds) or later; 0: any.
    `gpus`: the device minors of the job's GPUs; None: all. `wait_seconds`: how long the answer may take."""

    fingerprint: str
    boot: str
    newer: int
    gpus: frozenset[int] | None
    wait_seconds: float


class Answer(NamedTuple):
    """`passes`: the agent's report, `age_seconds` old, stands for a check. Else `reason`, one word, says why the gate
    has to look itself, and `cure` what the agent could run so that its answer may be another: ROUND, VARIANTS, or
    nothing."""

    passes: bool
    age_seconds: int = 0
    reason: str = ""
    cure: str = ""

    @property
    def line(self) -> str:
        return f"PASS {self.age_seconds}" if self.passes else f"CHECK {self.reason}"


def parse_question(path: str) -> Question:
    """Raises WrongQuestion."""
    found = _PATH.fullmatch(path)
    gpus = None if not found or found["gpus"] == "-" else parse_gpus(found["gpus"])
    if not found or (gpus is None and found["gpus"] != "-"):
        raise WrongQuestion
    wait = min(MAX_WAIT_SECONDS, int(found["wait"]) / 1000)
    return Question(found["fingerprint"], found["boot"], int(found["newer"]), gpus, wait)


log = logging.getLogger("laggard.agent")

MAX_CONNECTIONS: Final = 512
QUESTION_SECONDS: Final = 2.0
"""The time for a whole question."""

MAX_REQUEST_BYTES: Final = 4096
"""The largest request, as curl sends one."""

_TICK_SECONDS: Final = 0.1
_PAUSE_SECONDS: Final = 0.05
_WAIT: Final = "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nWAIT\n"
"""The line before the answer, at once: the prolog knows that somebody works on it."""


class _Prolog:
    """One that asks. `until`: when it is sent away or gets the answer that there is (monotonic seconds)."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.connection = connection
        self.until = until
        self.data = b""
        self.question: Question | None = None
        self.asked_at = 0.0  # seconds since boot


class GateServer:
    """`judge` gives the answer that there is now. Takes the listener, and closes it at its end."""

    def __init__(self, listener: socket.socket, loop: ProbeLoop, judge: Callable[[Question], Answer]) -> None:
        self._listener = listener
        self._loop = loop
        self._judge = judge
        self._selector = selectors.DefaultSelector()
        self._prologs: set[_Prolog] = set()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._stopped = False
        loop.on_change = self._notify

    def start(self) -> None:
        threading.Thread(target=self._serve, name="gate", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        self._notify()

    def _notify(self) -> None:
        with contextlib.suppress(OSError):  # it is full of such bytes, or closed
            self._wake.send(b"x")

    def _serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._answer_all)
        while not self._stopped:
            try:
                for key, _ in self._selector.select(_TICK_SECONDS if self._prologs else None):
                    key.data()
                self._send_away_late()
            except Exception:  # one prolog must not end the others'
                log.exception("a defect in laggard, while answering a prolog")
                time.sleep(_PAUSE_SECONDS)
        for prolog in tuple(self._prologs):
            self._end(prolog)
        for each in (self._listener, self._woken, self._wake, self._selector):
            each.close()

    def _accept(self) -> None:
        """Takes all who wait, and their questions where these are there already, as they are when many ask at once."""
        for _ in range(MAX_CONNECTIONS):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor, or no memory, for the moment
                time.sleep(_PAUSE_SECONDS)
                return
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        if len(self._prologs) >= MAX_CONNECTIONS or peer_of(connection)[1] not in (0, os.geteuid()):
            connection.close()
            return
        connection.setblocking(False)
        prolog = _Prolog(connection, time.monotonic() + QUESTION_SECONDS)
        self._prologs.add(prolog)
        self._read(prolog)
        if prolog in self._prologs:
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(prolog))

    def _read(self, prolog: _Prolog) -> None:
        try:
            data = prolog.connection.recv(MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or prolog.question is not None:  # it is gone, or goes on talking
            self._end(prolog)
            return
        prolog.data += data
        if b"\r\n\r\n" in prolog.data:
            self._asked(prolog)
        elif len(prolog.data) > MAX_REQUEST_BYTES:
            self._end(prolog)

    def _asked(self, prolog: _Prolog) -> None:
        if not _sent(prolog.connection, _WAIT):
            self._end(prolog)
            return
        path = prolog.data.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ")[1:2]
        try:
            prolog.question = parse_question("".join(path))
        except WrongQuestion:
            self._send(prolog, "CHECK question")
            return
        prolog.asked_at = uptime()
        prolog.until = time.monotonic() + prolog.question.wait_seconds
        answer = self._judge(prolog.question)
        if answer.passes or not answer.cure or not prolog.question.wait_seconds:
            self._send(prolog, answer.line)
            return
        self._loop.want(answer.cure)

    def _answer_all(self) -> None:
        """Something has run: answers all whom that settles, and wants the rest."""
        self._woken.recv(4096)
        latest = self._loop.latest
        for prolog in tuple(self._prologs):
            if prolog.question is None:
                continue
            answer = self._judge(prolog.question)
            began = latest.began if answer.cure == ROUND else latest.variants_began
            if answer.passes or not answer.cure or began > prolog.asked_at:
                self._send(prolog, answer.line)
            else:
                self._loop.want(answer.cure)

    def _send_away_late(self) -> None:
        now = time.monotonic()
        for prolog in tuple(self._prologs):
            if now < prolog.until:
                continue
            if prolog.question is None:
                self._end(prolog)
            else:
                self._send(prolog, self._judge(prolog.question).line)

    def _send(self, prolog: _Prolog, line: str) -> None:
        if _sent(prolog.connection, f"{line}\n") and prolog.question is not None and line.startswith("PASS"):
            log.info("a prolog passed, GPUs %s: %s s old", sorted(prolog.question.gpus or ()) or "all", line)
        self._end(prolog)

    def _end(self, prolog: _Prolog) -> None:
        self._prologs.discard(prolog)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(prolog.connection)
        prolog.connection.close()


def _sent(connection: socket.socket, text: str) -> bool:
    """It fits the kernel's buffer: who does not take it is gone."""
    try:
        return connection.send(text.encode("ascii")) == len(text)
    except OSError:
        return False


BACKLOG: Final = 512
_MODE: Final = 0o600  # root may ask anyway


def open_listener(path: str) -> socket.socket | None:
    """Listens at `path`, in the place of a socket that nobody listens at any more. None where that cannot be, which the
    log tells: prologs then look themselves."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        log.debug("prologs cannot ask: there is no folder %s", folder)
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if reason := why_not(folder) or _make_room(path):
            raise OSError(0, reason)
        listener.bind(path)
        os.chmod(path, _MODE)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        log.warning("prologs cannot ask at %s: %s", path, error.strerror)
        return None
    log.info("prologs ask at %s", path)
    return listener


def why_not(folder: str) -> str:
    """Empty where nobody else can put a socket into `folder`."""
    there = os.lstat(folder)
    if there.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to user {there.st_uid}"
    if not stat.S_ISDIR(there.st_mode) or there.st_mode & 0o022:
        return f"{folder} is no folder of the agent's alone: others may write there"
    return ""


def _make_room(path: str) -> str:
    """Removes what an agent has left at `path`. Returns why it must not be removed."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return ""
    if not stat.S_ISSOCK(there.st_mode):
        return "something else than a socket is there"
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as other:
        other.setblocking(False)
        try:
            other.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return ""
        except BlockingIOError:
            pass
    return "another agent listens there"
