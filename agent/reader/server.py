"""Serves the reader's answers over a Unix socket, to the users that may ask, each question within bounds."""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from laggard.agent.reader.answers import Refused, allowed_users, answer
from laggard.agent.sock_diag import peer_of
from laggard.kit.daemon import add_log_flags, log_to_stderr
from laggard.kit.errors import UsageError
from laggard.kit.words import ascii_line
from laggard.probes.host.host import Host
from laggard.probes.host.reader import MAX_QUESTION_BYTES, SOCKET

log = logging.getLogger("laggard.reader")

QUESTION_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 5.0
MAX_CONNECTIONS: Final = 16
MAX_STRANGERS: Final = 4
"""The most connections of users that may not ask, who are told so: they must not take the places of those who may."""

BACKLOG: Final = 256
STUCK_SECONDS: Final = 30.0
"""The time after which places that nobody has given back since are held for ever: an answer takes seconds."""

_REASON_CHARACTERS: Final = 300
_PAUSE_SECONDS: Final = 0.1


class ReaderServer:
    """`users` are the uids that may ask; others are told so. `answer` may raise Refused. `when_stuck` is called where
    all places have been held for STUCK_SECONDS."""

    def __init__(
        self,
        listener: socket.socket,
        users: frozenset[int],
        answer: Callable[[str], bytes],
        when_stuck: Callable[[], None] = lambda: None,
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        self._listener = listener
        self._users = users
        self._answer = answer
        self._when_stuck = when_stuck
        self._stuck_seconds = stuck_seconds
        self._given_back_at = time.monotonic()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._free_to_strangers = threading.BoundedSemaphore(MAX_STRANGERS)

    def serve(self) -> None:
        """Serves until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):  # closed
                    return
                time.sleep(_PAUSE_SECONDS)  # no descriptor, or no memory, for the moment
                continue
            free = self._free if peer_of(connection)[1] in self._users else self._free_to_strangers
            if not free.acquire(blocking=False):
                connection.close()
                if free is self._free and time.monotonic() - self._given_back_at > self._stuck_seconds:
                    self._when_stuck()
                continue
            threading.Thread(target=self._serve_one, args=(connection, free), daemon=True).start()

    def _serve_one(self, connection: socket.socket, place: threading.Semaphore) -> None:
        try:
            with connection, contextlib.suppress(OSError):  # who asked is gone, or takes too long
                connection.settimeout(ANSWER_SECONDS)
                connection.sendall(self._reply(connection))
        except Exception:  # one question must not end the others
            log.exception("a defect in laggard, while answering")
        finally:
            if place is self._free:
                self._given_back_at = time.monotonic()
            place.release()

    def _reply(self, connection: socket.socket) -> bytes:
        pid, uid = peer_of(connection)
        question = _read_question(connection)  # in any case: unread, it would make the kernel drop the answer
        if uid not in self._users:
            log.warning("process %d of user %d may not ask", pid, uid)
            return b"no this user may not ask\n"
        log.debug("process %d of user %d asks %s", pid, uid, question)
        try:
            body = self._answer(question)
        except Refused as error:
            return f"no {ascii_line(str(error))[:_REASON_CHARACTERS]}\n".encode("ascii")
        return f"ok {len(body)}\n".encode("ascii") + body


def _read_question(connection: socket.socket) -> str:
    """The line, within QUESTION_SECONDS; what is too long or no text is a question that nobody knows."""
    deadline = time.monotonic() + QUESTION_SECONDS
    data = b""
    while b"\n" not in data and len(data) <= MAX_QUESTION_BYTES:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(MAX_QUESTION_BYTES + 1)
        if not part:
            break
        data += part
    connection.settimeout(ANSWER_SECONDS)
    line, end, _ = data.partition(b"\n")
    return ascii_line(line.decode("ascii", "replace")) if end and len(line) <= MAX_QUESTION_BYTES else ""


# `laggard agent --reader`: reads, for an agent without privileges, the few things that take some.

_FIRST_PASSED: Final = 3  # SD_LISTEN_FDS_START (sd_listen_fds(3))
EX_TEMPFAIL: Final = 75  # sysexits.h
_MODE: Final = 0o666  # who may ask is decided by the peer's credentials
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket",
        default=SOCKET,
        metavar="FILE",
        help=f"where to listen, unless systemd passes a socket (default: {SOCKET})",
    )
    parser.add_argument(
        "--allow-user",
        action="append",
        default=[],
        metavar="NAME|UID",
        help="who may ask, beside root and this process's own user (repeatable; default: laggard)",
    )
    add_log_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then returns 0. Raises UsageError where it cannot start."""
    users = allowed_users(tuple(arguments.allow_user) or ("laggard",))
    with _listener(arguments.socket) as listener:
        log_to_stderr(arguments.log_level, arguments.log_format)
        # Blocked before any thread starts, so that the signals wait for sigwait and interrupt no thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        host = Host()
        server = ReaderServer(listener, users, lambda question: answer(question, host), _give_up)
        log.info("listening on %s for the users %s", listener.getsockname(), ", ".join(map(str, sorted(users))))
        threading.Thread(target=server.serve, daemon=True).start()
        log.info("%s: stopping", signal.Signals(signal.sigwait(_STOP_SIGNALS)).name)
    return 0


def _give_up() -> None:
    """Ends this process, so that its supervisor starts it again: threads that wait in the kernel cannot be ended."""
    log.error("all %d places are held by answers that do not end: ending, to be started again", MAX_CONNECTIONS)
    os._exit(EX_TEMPFAIL)


def _listener(path: str) -> socket.socket:
    """The socket that systemd passes, else a new one at `path`, in the place of one that nobody listens at any more.
    Raises UsageError."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=_FIRST_PASSED)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if _is_abandoned(path):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, _MODE)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen at {path}: {error.strerror}; choose another place with --socket") from None
    return listener


def _is_abandoned(path: str) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as other:
        try:
            other.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
