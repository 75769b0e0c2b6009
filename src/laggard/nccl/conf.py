"""Parses NCCL's settings files (/etc/nccl.conf, ~/.nccl.conf) as NCCL does. Pure.

A line is NAME=VALUE, and NCCL trims nothing but the end of the line: a blank or a quote is a part of the name or the
value (src/misc/param.cc). `#` begins a comment only as the first character of a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

ETC: Final = "/etc/nccl.conf"
_MAX_CHARACTERS = 1023  # that NCCL's buffers hold of a name and of a value


class NcclConf(NamedTuple):
    """The contents of one settings file."""

    settings: Mapping[str, str]
    """The settings as NCCL takes them: it does not set a variable a second time, so the first line of a name wins."""
    ineffective: tuple[tuple[int, str], ...]
    """Lines that look like settings and are none: (line number, reason)."""


def parse_conf(text: str) -> NcclConf:
    """Never fails: NCCL skips what it does not understand."""
    settings: dict[str, str] = {}
    ineffective: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        name, sign, value = line.partition("=")
        if line.startswith("#") or "NCCL_" not in name:
            continue
        reason = _why_ineffective(name, sign, value)
        if reason:
            ineffective.append((number, reason))
        else:
            settings.setdefault(name[:_MAX_CHARACTERS], value[:_MAX_CHARACTERS])
    return NcclConf(settings, tuple(ineffective))


def _why_ineffective(name: str, sign: str, value: str) -> str | None:
    if not sign:
        return f"{name.strip()!r} has no `=`"
    if name.startswith("export "):
        return "`export` is taken for a part of the name"
    if name != name.strip():
        return "blanks before `=` are taken for a part of the name"
    if value[:1] in "\"'" and value:
        return f"the quotes are taken for a part of the value of {name}"
    if value != value.strip():
        return f"blanks are taken for a part of the value of {name}"
    return None
