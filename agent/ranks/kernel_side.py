"""Where a rank's main thread stands on the kernel's side: read as far as this process may, else by laggard's reader."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from laggard.probes.host.apart import NoChild, Stopped, apart
from laggard.probes.host.reader import NoReader, ask
from laggard.stacks.kernel_side import KernelSide, NotThere, checked, read_kernel_side


class NoSide(Exception):
    """It is not known. The text says why."""


def whole_side(owner: int, pid: int) -> KernelSide:
    """Returns all that this process may know of the main thread of the user's process. A child process reads it, which
    is killed where that does not end. Raises NoSide."""

    def read(note: Callable[[int], None]) -> bytes:
        note(pid)
        try:
            return msgspec.json.encode(read_kernel_side(pid, pid, owner))
        except NotThere:
            return b""

    try:
        answer = apart(read)
    except Stopped:
        raise NoSide("the process does not let itself be read") from None
    except NoChild as error:
        raise NoSide(str(error)) from None
    if not answer:
        raise NoSide("no process of that number is that user's")
    return _decoded(answer)


class KernelReader:
    """Reads the ranks of one answer: where one cannot be read, the others are told only as far as that needs nobody."""

    def __init__(self) -> None:
        self._is_quick = False

    def side(self, owner: int, pid: int) -> KernelSide | None:
        """Returns the place of the main thread of the user's process; None where there is none, or where it is not
        visible from here (`pid` 0)."""
        if pid <= 0:
            return None
        try:
            quick = read_kernel_side(pid, pid, owner, whole=False)
        except NotThere:
            return None
        if quick.is_whole or self._is_quick:
            return quick
        try:
            return whole_side(owner, pid) if os.geteuid() in (0, owner) else _of_reader(owner, pid)
        except NoSide:
            self._is_quick = True
            return quick


def _of_reader(owner: int, pid: int) -> KernelSide:
    """Raises NoSide."""
    try:
        return _decoded(ask(f"kernel_side {owner} {pid}"))
    except NoReader as error:
        raise NoSide(error.strerror) from None


def _decoded(answer: bytes) -> KernelSide:
    """Raises NoSide."""
    try:
        return checked(*msgspec.json.decode(answer, type=KernelSide))
    except (ValueError, msgspec.MsgspecError):
        raise NoSide("laggard's reader answers something else") from None
