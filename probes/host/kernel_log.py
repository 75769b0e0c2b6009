"""Reads the kernel's log from /dev/kmsg or by syslog(2), and splits it into messages, in the form of either."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

KMSG_PATH: Final = "/laggard/kmsg"
"""The log of a recorded machine."""

_RECORD_BYTES: Final = 8192  # more than the longest record (CONSOLE_EXT_LOG_MAX)
_MAX_BYTES: Final = 64 << 20  # larger than the log buffers that people configure (log_buf_len)
_NO_DEVICE: Final = (errno.ENOENT, errno.EACCES, errno.EPERM)
_READ_ALL, _SIZE_BUFFER = 3, 10  # SYSLOG_ACTION_* of include/linux/syslog.h
_KMSG = re.compile(r"\d+,(\d+),(\d+),[^;]*;(.*)")
_SECONDS = re.compile(r"(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?(?:\[[^\]]*\]\s)?(.*)")
_DATE = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}\]\s?(.*)")
_SYSLOG = re.compile(r".{1,80}? kernel: (.*)")


class KernelMessage(NamedTuple):
    """One message. `seconds` counts from boot; None where the log's form does not hold it."""

    seconds: float | None
    text: str


def read_kmsg() -> str:
    """All records that the kernel still holds. Raises OSError, where laggard's reader cannot help either."""
    try:
        return read_own_kmsg()
    except OSError as error:
        if error.errno not in _NO_DEVICE:
            raise
        from laggard.probes.host.reader import with_reader  # sockets are slow to import, and root needs none

        return with_reader(error, "kernel_log").decode(errors="replace")


def read_own_kmsg() -> str:
    """The same as this process may read it. A container without all devices has no /dev/kmsg, or may not open it; with
    CAP_SYSLOG it gets the same from syslog(2). Raises OSError."""
    try:
        return _read_records()
    except OSError as error:
        text = _read_buffer() if error.errno in _NO_DEVICE else None
        if text is None:
            raise
        return text


def _read_records() -> str:
    """One read returns one record; EPIPE means that the next record was overwritten before it was read."""
    records: list[bytes] = []
    size = 0
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while size < _MAX_BYTES:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
                if not record:  # some containers have /dev/null under this name, and the kernel's log never ends
                    raise OSError(errno.ENOENT, "/dev/kmsg is another file than the kernel's log")
                records.append(record)
                size += len(record)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
    finally:
        os.close(descriptor)
    return b"".join(records).decode(errors="replace")


def _read_buffer() -> str | None:
    """The kernel's buffer as syslog(2) gives it, in the form of dmesg --raw; None where it refuses."""
    import ctypes  # slow to import, and needed in containers alone

    libc = ctypes.CDLL(None, use_errno=True)
    size = libc.klogctl(_SIZE_BUFFER, None, 0)
    if size <= 0:
        return None
    buffer = ctypes.create_string_buffer(min(size, _MAX_BYTES))
    length = libc.klogctl(_READ_ALL, buffer, len(buffer))
    return None if length < 0 else buffer.raw[:length].decode(errors="replace")


def last_at(seconds: float | None, booted_at: float | None) -> dict[str, float]:
    """The evidence of a finding that says when the last of its records was written: `last_at`, in Unix time. Empty
    where that is not known. `seconds`: after boot."""
    return {} if seconds is None or booted_at is None else {"last_at": round(booted_at + seconds, 1)}


def parse_messages(text: str) -> Iterator[KernelMessage]:
    """Yields the message of each line. Empty lines are left out, and lines that continue a record: they begin with a
    space."""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            yield _message(line)


def _message(line: str) -> KernelMessage:
    if found := _KMSG.match(line):
        return KernelMessage(int(found[2]) / 1e6, found[3])
    if found := _SECONDS.match(line):
        return KernelMessage(float(found[1]), found[2])
    if found := _DATE.match(line):
        return KernelMessage(None, found[1])
    if found := _SYSLOG.match(line):
        inner = _SECONDS.match(found[1])
        return KernelMessage(float(inner[1]), inner[2]) if inner else KernelMessage(None, found[1])
    return KernelMessage(None, line)
