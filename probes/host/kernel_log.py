"""Reads the kernel's log from /dev/kmsg or by syslog(2), and splits it into messages, in the form of either.

Any user can make the kernel write text of theirs."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple

from laggard.kernel_rules.rule import LIVE_BEGINNINGS, Rule, RuleJudge
from laggard.kit.words import lazy_pattern
from laggard.probes.tables import rules

KMSG_PATH: Final = "/laggard/kmsg"
"""The log of a recorded machine."""

_RECORD_BYTES: Final = 8192  # more than the longest record (CONSOLE_EXT_LOG_MAX)
_MAX_BYTES: Final = 64 << 20  # larger than the log buffers that people configure (log_buf_len)
_NO_DEVICE: Final = (errno.ENOENT, errno.EACCES, errno.EPERM)
_READ_ALL, _SIZE_BUFFER = 3, 10  # SYSLOG_ACTION_* of include/linux/syslog.h
_KMSG = lazy_pattern(r"(\d+),(\d+),(\d+),([^,;]*)[^;]*;(.*)")
_SECONDS = lazy_pattern(r"(?:<(\d+)>)?\[\s*(\d+\.\d+)\]\s?(\[\s*[TC]\d+\]\s)?(.*)")
_DATE = lazy_pattern(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}\]\s?(.*)")
_SYSLOG = lazy_pattern(r".{1,80}? kernel: (.*)")
_CONTINUES: Final = "c"
"""The flag of a record that goes on with another one: a piece that another processor's message cut off. It can begin
with a name that a user chose, as that of a cgroup."""

_NEWLINE: Final = r"\x0a"
"""A newline within a record, as /dev/kmsg escapes it."""


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
    CAP_SYSLOG it gets the same from syslog(2), whose text does not tell records from lines by itself: parse_messages
    does, by their heads. Raises OSError."""
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
    text = None if length < 0 else buffer.raw[:length].decode(errors="replace")
    if text and not any(_SECONDS.match(line) for line in text.split("\n")):
        raise OSError(
            errno.ENODATA, "without /dev/kmsg, nothing tells users' text in it (printk.time is off) from the kernel's"
        )
    return text


def last_at(seconds: float | None, booted_at: float | None) -> dict[str, float]:
    """The evidence of a finding that says when the last of its records was written: `last_at`, in Unix time. Empty
    where that is not known. `seconds`: after boot."""
    return {} if seconds is None or booted_at is None else {"last_at": round(booted_at + seconds, 1)}


def age_text(seconds: int) -> str:
    """The age of a record, for the summary of a finding."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds // 60} min"


def parse_messages(text: str) -> Iterator[KernelMessage]:
    """Yields the kernel's messages, one a record. Nothing that a user wrote begins one:

    - records that programs wrote to /dev/kmsg are left out: their facility is not the kernel's;
    - a newline within a record, which user text can hold, begins no message. /dev/kmsg escapes it. In the text of
      syslog(2) each line has the head of its record, so that lines of the same level, time and caller are one record;
    - who called printk stands in the heads of all lines of syslog(2), or of none (CONFIG_PRINTK_CALLER): where one line
      has no caller, what looks like one is text;
    - a line without a head is a message only in a text where no line has one. Only "\\n" ends a line.

    Left out are also lines that begin with a space, the properties of a record, and pieces of cut records."""
    lines = text.split("\n")
    bare = all(_read_line(line) is None for line in lines)
    has_callers = _has_callers(lines)
    pending: _Line | None = None
    for line in lines:
        found = _read_line(line.rstrip("\r"), has_callers)
        if found is None:
            if bare and line.strip() and not line.startswith(" "):
                yield KernelMessage(None, line.rstrip("\r"))
        elif pending is not None and found.head and found.head == pending.head:
            pending = pending._replace(text=pending.text + _NEWLINE + found.text)
        else:
            if pending is not None and pending.begins:
                yield KernelMessage(pending.seconds, pending.text)
            pending = found
    if pending is not None and pending.begins:
        yield KernelMessage(pending.seconds, pending.text)


@lru_cache(maxsize=1)  # several probes of one process look at the same text
def messages_of(log: str) -> tuple[KernelMessage, ...]:
    """Returns what parse_messages() yields."""
    return tuple(parse_messages(log))


def judge_log(log: str, rules: Sequence[Rule], beginnings: tuple[str, ...] = ("",)) -> RuleJudge:
    """Returns what the rules find in the records that begin so, and with no text of a user's."""
    judge = RuleJudge(rules, begins_with_users_text)
    for message in messages_of(log):
        if message.text.startswith(beginnings):
            judge.take(message.text, message.seconds)
    return judge


AGAIN_SECONDS: Final = 12 * 3600.0
"""The time within which an event that comes again is counted: gpud takes 12 hours for links, Azure's node check 24."""
SPREAD_SECONDS: Final = 2 * 3600.0
"""The time over which an event is spread before it is a state: an upgrade, of a switch or of this node, with its
restarts, is over by then."""
_AGAIN, _MANY = 3, 12
# So often an event comes; and so often, however soon: four times as often as an upgrade restarts a switch.
_ONE_SECONDS: Final = 60.0  # lines that are no further apart tell of one event
_QUIET: Final = 3
# Events that come by chance leave three times their mean distance without one in 5 % of cases (e^-3): it is over.


def goes_on(times: Iterable[float | None], now: float) -> str:
    """How an event comes again and again, up to now: then it is a state, and each look may find all well. Empty where
    it came seldom, within the time of an upgrade, or has ended. `times` and `now`: in seconds after boot, in order."""
    events: list[float] = []
    for at in times:
        if at is not None and now - at <= AGAIN_SECONDS and not (events and at - events[-1] < _ONE_SECONDS):
            events.append(at)
    spread = events[-1] - events[0] if events else 0.0
    if len(events) < _AGAIN or (spread < SPREAD_SECONDS and len(events) < _MANY):
        return ""
    ago = now - events[-1]
    if ago > _QUIET * spread / (len(events) - 1):
        return ""
    return f"{len(events)} times in {spread / 3600:.1f} h, the last one {age_text(int(ago))} ago"


class _Line(NamedTuple):
    """`head`: what all lines of one record share; empty where a line is a record. `begins`: whether the kernel wrote
    it, and it is no piece of another."""

    seconds: float | None
    text: str
    head: str = ""
    begins: bool = True


def _has_callers(lines: Iterable[str]) -> bool:
    """Whether each line in the form of syslog(2) names who called printk."""
    heads = (found for line in lines if line.startswith("<") and (found := _SECONDS.match(line)))
    return all(found[3] for found in heads)


def _read_line(line: str, has_callers: bool = True) -> _Line | None:
    """None: it has no head. `has_callers`: of _has_callers()."""
    if found := _KMSG.match(line):
        return _Line(int(found[3]) / 1e6, found[5], "", _is_kernels(found[1]) and found[4] != _CONTINUES)
    if found := _SECONDS.match(line):
        begin = found.start(4) if has_callers or not found[1] or not found[3] else found.start(3)
        return _Line(float(found[2]), line[begin:], line[:begin] if found[1] else "", _is_kernels(found[1]))
    if found := _DATE.match(line):
        return _Line(None, found[1])
    if found := _SYSLOG.match(line):
        inner = _SECONDS.match(found[1])
        return _Line(float(inner[2]), inner[4]) if inner else _Line(None, found[1])
    return None


def _is_kernels(priority: str | None) -> bool:
    """Whether the facility, which stands above three bits of level, is the kernel's. A program that writes to /dev/kmsg
    cannot have it (kernel/printk/printk.c, devkmsg_write)."""
    return priority is None or len(priority) < 10 and not int(priority) >> 3


# The messages of the kernel that hold text of a user, and where: rules/users_text.ini. Pure.
#
# A message counts as a driver's only where its record begins as the driver's do. So text in the middle of a record says
# nothing; at its beginning a user can place 15 characters, the name of a process, or where netfilter logs, up to 127.


NAME: Final = r"(?:\\x[0-9a-f]{2}|.){1,15}"
"""A process's name, as any user chooses it: at most 15 bytes (TASK_COMM_LEN), of any value but 0."""


@cache  # where it is asked for first: most gates read no log, and compiling takes two milliseconds of their start
def _users_text(*kinds: str) -> re.Pattern[str]:
    patterns = "|".join(row.pattern for row in rules("users_text") if row.kind in kinds)
    return re.compile(patterns.replace("{NAME}", NAME), re.DOTALL)


def begins_with_users_text(text: str) -> bool:
    """Whether the message begins with what a user may have chosen, so that its beginning names no driver."""
    return bool(_users_text("at_the_beginning").match(text)) or holds_users_message(text)


def holds_users_message(text: str) -> bool:
    """Whether the message may hold a whole message that a user wrote."""
    return bool(_users_text("in_the_middle", "of_any_length").match(text))


# What is remembered of the kernel's log, so that a flood of lines washes nothing away that was seen. Pure.
#
# The kernel's buffer is small, and any user can fill it. A process that looks at it again and again keeps the drivers'
# records, and knows from which moment on it has missed none: records are numbered without a gap.

MAX_RECORDS: Final = 4096
"""The largest number of records that are kept. Where there are more, the oldest go, and the memory begins later."""

_MAX_CHARACTERS: Final = 1024
_RECORD: Final = lazy_pattern(r"\d+,(\d+),(\d+),[^;]*;(.*)")
_FIRST_LINE: Final = lazy_pattern(r"(?:<\d+>)?\[\s*(\d+\.\d+)\]")
_DRIVERS: Final = (
    *("NVRM: ", "nvidia-nvswitch", "mlx5_core ", "amdgpu ", "[drm:amdgpu", "[drm] amdgpu "),
    *LIVE_BEGINNINGS,
)
"""The beginnings of the records that the probes judge."""


class LogMemory(NamedTuple):
    """`since`: the seconds after boot from which on no record was missed; None: not known. `last`: the number of the
    newest record that was seen; -1: none was. `records`: those of the drivers, as (number, line of /dev/kmsg)."""

    since: float | None = None
    last: int = -1
    records: tuple[tuple[int, str], ...] = ()


def remember(memory: LogMemory, log: str) -> LogMemory:
    """Returns the memory after a look at the log, in any form; only that of /dev/kmsg is kept, which has numbers."""
    lines = [(found, line) for line in log.split("\n") if (found := _RECORD.match(line))]
    if not lines:
        return memory._replace(since=_first_time(log))
    first = int(lines[0][0][1])
    seamless = memory.last >= 0 and first <= memory.last + 1
    begins = memory.since if seamless else 0.0 if first == 0 else int(lines[0][0][2]) / 1e6
    new = [
        (int(found[1]), line[:_MAX_CHARACTERS])
        for found, line in lines
        if found[3].startswith(_DRIVERS) and int(found[1]) > memory.last and not begins_with_users_text(found[3])
    ]  # a process named `NVRM: x` that crashes again and again pushes nothing out
    records = (*memory.records, *new)
    if len(records) > MAX_RECORDS:
        records = records[-MAX_RECORDS:]
        begins = max(begins or 0.0, _seconds(records[0][1]))
    return LogMemory(begins, max(memory.last, int(lines[-1][0][1])), records)


def with_memory(memory: LogMemory, log: str) -> str:
    """Returns the log with the kept records before it that are no longer in it."""
    first = next((int(found[1]) for line in log.split("\n") if (found := _RECORD.match(line))), None)
    kept = [line for number, line in memory.records if first is not None and number < first]
    return "".join(f"{line}\n" for line in kept) + log


def _seconds(line: str) -> float:
    found = _RECORD.match(line)
    return int(found[2]) / 1e6 if found else 0.0


def _first_time(log: str) -> float | None:
    return next((float(found[1]) for line in log.split("\n") if (found := _FIRST_LINE.match(line))), None)
