"""Settings files of NCCL (/etc/nccl.conf, ~/.nccl.conf), read as NCCL reads them. Pure.

A line is NAME=VALUE, and nothing is trimmed but the end of the line: a blank is part of the name or of the value, and
so is a quote (src/misc/param.cc). `#` begins a comment only as the first character of a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

ETC: Final = "/etc/nccl.conf"
_MOST_NAME = 1023  # what NCCL's buffers hold


class Conf(NamedTuple):
    settings: Mapping[str, str]
    """As NCCL takes them: a variable that is already set is not set again, so the first line wins."""
    idle: tuple[tuple[int, str], ...]
    """Lines that look like settings and are none, by number, with the reason."""


def parse_conf(text: str) -> Conf:
    settings: dict[str, str] = {}
    idle: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        name, sign, value = line.partition("=")
        if line.startswith("#") or "NCCL_" not in name:
            continue
        why = _why_idle(name, sign, value)
        if why:
            idle.append((number, why))
        else:
            settings.setdefault(name[:_MOST_NAME], value[:_MOST_NAME])
    return Conf(settings, tuple(idle))


def _why_idle(name: str, sign: str, value: str) -> str | None:
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
