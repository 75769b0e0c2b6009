"""`laggard agent --reader`: reads, for an agent without privileges, the few things that take some."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import threading
from typing import Final

from laggard.agent.reader.answers import allowed_users, answer
from laggard.agent.reader.server import BACKLOG, MAX_CONNECTIONS, ReaderServer
from laggard.kit.daemon import add_log_flags, log_to_stderr
from laggard.kit.errors import UsageError
from laggard.probes.host.host import Host
from laggard.probes.host.reader import SOCKET

log = logging.getLogger("laggard.reader")

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
