"""Flags and logging that the agent and the collector share. The flags are named as in Prometheus' exporters."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Final

from laggard.kit.config import Settings, dump

REPEAT_SECONDS: Final = 60.0
"""The time in which a warning or error of one kind is logged once."""

_MAX_KINDS: Final = 1024
_M_MMAP_THRESHOLD: Final = -3  # malloc.h
_LARGE_BLOCK_BYTES: Final = 1 << 18


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", help="settings in YAML; flags override them (docs/configuration.md has all keys)"
    )
    parser.add_argument("--check-config", action="store_true", help="only say whether the settings are right")
    parser.add_argument("--dump-config", action="store_true", help="only print the settings that hold, as YAML")


def asked_about_settings(arguments: argparse.Namespace, settings: Settings, warnings: Sequence[str] = ()) -> bool:
    """Whether the daemon is not to start, but to answer --check-config or --dump-config; answers them. `warnings`: what
    may be as it is meant, and is told by --check-config."""
    if arguments.dump_config:
        sys.stdout.write(dump(settings))
    elif arguments.check_config:
        where = arguments.config or "the default settings"
        print("".join(f"{where}: warning: {line}\n" for line in warnings) + f"{where}: no mistake found")
    return bool(arguments.dump_config or arguments.check_config)


def add_listen_flag(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds the flag. `default` is for the help text alone: a flag that is not given is None, so that the settings' file
    can supply the address."""
    parser.add_argument(
        "--web.listen-address",
        dest="listen_address",
        metavar="HOST:PORT",
        help=f"where to serve; :PORT is every interface, port 0 any free one (default: {default})",
    )
    parser.add_argument(
        "--web.config.file",
        dest="web_config_file",
        metavar="FILE",
        help="TLS and clients' certificates, in the format of Prometheus' exporters (docs/tls.md; default: plain HTTP)",
    )


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log.level",
        dest="log_level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="the lowest level of laggard's messages on standard error (default: info)",
    )
    parser.add_argument(
        "--log.format",
        dest="log_format",
        choices=("text", "json"),
        default="text",
        help="json: one object a line, with time, level, logger and message (default: text)",
    )
    for flag, level in (("--verbose", "debug"), ("--quiet", "warning")):
        parser.add_argument(flag, action="store_const", const=level, dest="log_level", help=f"as --log.level {level}")


def log_to_stderr(level: str, log_format: str = "text") -> None:
    """Logs to standard error: laggard's own loggers from `level` on, all others from warning on. Failures of one kind
    are one line a minute, unless the level is debug."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    if level != "debug":
        handler.addFilter(OncePerMinute())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("laggard").setLevel(level.upper())


class OncePerMinute(logging.Filter):
    """Lets a warning or error of one kind pass once in REPEAT_SECONDS, with the number of those that did not. The kind
    is the logger, the text before its values are put in, and the type of the exception: what a client or a user sends
    makes no new kinds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[object, tuple[float, int]] = {}  # when it last passed, and how many have not since

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        raised = record.exc_info[0] if record.exc_info else None
        kind = record.name, record.msg if isinstance(record.msg, str) else type(record.msg), raised
        now = self._clock()
        last, dropped = self._kinds.get(kind, (now - REPEAT_SECONDS, 0))
        if now - last < REPEAT_SECONDS:
            self._kinds[kind] = last, dropped + 1
            return False
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = now, 0
        if dropped:
            record.msg, record.args = f"{record.getMessage()} ({dropped} more of this kind since the last)", None
        return True


class _TextFormatter(logging.Formatter):
    """One line for each message. Tracebacks are kept for laggard's own defects; what a library reports is one line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and not _is_own(record):
            record.msg, record.args = f"{record.getMessage().splitlines()[0]}: {record.exc_info[1]!r}", None
            record.exc_info = record.exc_text = None
        return super().format(record)


class _JsonFormatter(logging.Formatter):
    """A JSON object for each message, on one line, with the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0]:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _is_own(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "laggard"


def give_memory_back() -> None:
    """Has the C library return each large block to the system once it is free. Else every thread that has answered with
    megabytes keeps them: a few dozen slow clients made an agent ten times as large for good."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
