"""Tells systemd that a daemon is ready, lives and stops: sd_notify(3) over its socket, without its library.

A watchdog that only a timer feeds proves nothing: here the daemon is asked over HTTP, and systemd is told what it
answered. A daemon that hangs answers nobody, and is started again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from laggard.kit.http_client import NoResponse, get

log = logging.getLogger("laggard.service_manager")

_ENV_SOCKET: Final = "NOTIFY_SOCKET"
_ENV_WATCHDOG: Final = "WATCHDOG_USEC"
_ENV_WATCHED: Final = "WATCHDOG_PID"
_STARTING_SECONDS: Final = 0.2
_ANSWER_SECONDS: Final = 10.0
_WITHOUT_WATCHDOG_SECONDS: Final = 3600.0


@contextlib.contextmanager
def supervised(url: str, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Asks the daemon at `url`, while it lasts, whether it is healthy, and tells systemd; does nothing without
    systemd."""
    address = environ.get(_ENV_SOCKET, "")
    if not address:
        yield
        return
    stopped = threading.Event()
    interval = watchdog_seconds(environ)
    # The daemon's blocked signals are inherited: the thread takes none of them.
    thread = threading.Thread(target=_watch, args=(url, address, interval, stopped), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        _notify(address, "STOPPING=1")


def watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """The interval at which systemd wants to hear from this process: half of WatchdogSec=, as sd_watchdog_enabled(3)
    recommends. None where it does not."""
    microseconds, watched = environ.get(_ENV_WATCHDOG, ""), environ.get(_ENV_WATCHED, "")
    if not microseconds.isdecimal() or not int(microseconds) or (watched and watched != str(os.getpid())):
        return None
    return int(microseconds) / 1e6 / 2


def _watch(url: str, address: str, interval: float | None, stopped: threading.Event) -> None:
    while not stopped.is_set() and not _is_healthy(url):
        stopped.wait(_STARTING_SECONDS)
    _notify(address, f"READY=1\nSTATUS=serving {url}\nMAINPID={os.getpid()}")
    while not stopped.wait(interval or _WITHOUT_WATCHDOG_SECONDS):
        if interval and _is_healthy(url):
            _notify(address, "WATCHDOG=1")


def _is_healthy(url: str) -> bool:
    if url.startswith("https:"):
        return _is_healthy_over_tls(url)
    try:
        get(f"{url}/-/healthy", _ANSWER_SECONDS)
    except NoResponse as error:
        log.debug("not healthy: %s", error)
        return False
    return True


def _is_healthy_over_tls(url: str) -> bool:
    """Whether it answers, or refuses to for want of a certificate: more it tells nobody."""
    from laggard.kit.tls import ASKS_FOR_CERTIFICATE, own_context

    try:
        get(f"{url}/-/healthy", _ANSWER_SECONDS, own_context())
    except NoResponse as error:
        log.debug("not healthy: %s", error)
        return ASKS_FOR_CERTIFICATE in str(error)
    return True


def _notify(address: str, state: str) -> None:
    path = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as plug:
            plug.connect(path)
            plug.sendall(state.encode())
    except OSError as error:
        log.warning("cannot tell systemd %s: %s", state.partition("=")[0], error.strerror)
