"""`laggard healthcheck --accept`: root accepts a finding on this node until a moment, ends that, or lists what is
accepted."""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable
from typing import Final

from laggard import wire
from laggard.catalogue.findings import find_type
from laggard.kit.errors import UsageError
from laggard.kit.parts import Line
from laggard.kit.terminal import show
from laggard.kit.words import coming_moment, counted, printable_line
from laggard.model import MAX_DEVICE
from laggard.wire.accepted import (
    MAX_REASON,
    Accepted,
    AcceptedDocument,
    AcceptedError,
    folder_of,
    holding,
    read_accepted,
    require_roots,
    written,
)

MAX_SECONDS: Final = 90 * 86400.0
Change = Callable[[tuple[Accepted, ...]], tuple[Accepted, ...]]


def accept(arguments: argparse.Namespace) -> int:
    """Raises UsageError."""
    now, path = time.time(), arguments.accepted
    try:
        if arguments.accept:
            asked = asked_for(arguments.accept, arguments.until, arguments.reason, now)
            if os.geteuid() != 0:
                raise UsageError("only root accepts findings: use sudo")
            change_file(path, lambda held: changed(holding(held, now), asked, now))
        held = holding(read_accepted(path), now)
    except AcceptedError as error:
        raise UsageError(str(error)) from None
    if arguments.format == "json":
        sys.stdout.write(wire.encode(AcceptedDocument(held)).decode() + "\n")
        sys.stdout.flush()
    else:
        headline = f"{counted(len(held), 'finding')} accepted on this node." if held else "Nothing is accepted here."
        show([Line(headline), *(Line(f"{it.name}: {it.words}") for it in held)])
    return 0


def asked_for(name: str, until: str | None, reason: str | None, now: float) -> Accepted:
    """Makes of `CODE[:DEVICE]` what it accepts; its end is `now` if it is to end. Raises UsageError."""
    code, colon, device = name.partition(":")
    code = find_type(code).code
    if (colon and not device) or device != printable_line(device, MAX_DEVICE):
        raise UsageError(f"--accept takes CODE or CODE:DEVICE with the device as the finding has it, not {name!r}")
    if until is None:
        raise UsageError("say with --until when it ends by itself: 8h, 7d, 2026-12-01T08:00+01:00; now ends it")
    end = coming_moment(until, now)
    if end - now > MAX_SECONDS:
        raise UsageError(f"--until {until} is more than {MAX_SECONDS / 86400:.0f} days from now")
    why = printable_line(reason or "", MAX_REASON)
    if not why and end > now:
        raise UsageError("say why with --reason, for those who read it later")
    return Accepted(code, end, why, device)


def changed(held: tuple[Accepted, ...], asked: Accepted, now: float) -> tuple[Accepted, ...]:
    """Returns what is accepted from now on. Raises UsageError if there is nothing to end."""
    rest = tuple(it for it in held if (it.code, it.device) != (asked.code, asked.device))
    if asked.until > now:
        return (*rest, asked)
    if len(rest) == len(held):
        raise UsageError(f"{asked.name} is not accepted: `laggard healthcheck --accept` lists what is")
    return rest


def change_file(path: str, change: Change) -> None:
    """Replaces what the file accepts, as a whole. Of two at once, one is refused. Raises AcceptedError, and what
    `change` raises; then the file stays as it is."""
    name = os.path.basename(path)
    new, flags = f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        with folder_of(path) as folder, contextlib.ExitStack() as undone:
            require_roots(folder, stat.S_ISDIR, f"the folder of {path}")
            descriptor = os.open(new, flags, 0o600, dir_fd=folder)
            undone.callback(os.unlink, new, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(written(change(read_accepted(path))))
                file.flush()
                os.fchmod(descriptor, 0o644)
                os.fsync(descriptor)
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            undone.pop_all()
            os.fsync(folder)
    except FileExistsError:
        raise AcceptedError(f"{path}.new is there: somebody else changes this now, or remove it") from None
    except OSError as error:
        raise AcceptedError(f"{path} cannot be written: {error.strerror}") from None
