"""NCCL's environment variables: looked up in variable_table.py, their values and settings files read as NCCL does, and
NCCL's version numbers. Pure."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from laggard.nccl.variable_table import OTHER_READERS, PLUGIN_PREFIXES, SECRET, Category, Variable, Version

_VERSION_WORD = re.compile(r"[0-9]{1,9}")


@functools.cache
def variables() -> Mapping[str, Variable]:
    """The known variables by name: the variables of TABLE_VERSION, those of earlier versions, and those of plugins
    without a prefix of their own. The fields of a row are separated by `|`."""
    with open(os.path.join(os.path.dirname(__file__), "variables.txt"), encoding="utf-8") as file:
        rows = file.read().splitlines()
    return {variable.name: variable for row in rows if row[:1] != "#" for variable in [_variable(*row.split("|"))]}


def _variable(
    name: str, category: str, since: str, removed: str, default: str, values: str, documented: str, note: str
) -> Variable:
    return Variable(name, Category(category), since, removed, default, values, documented == "d", note)


def other_reader(name: str) -> str | None:
    """The software besides NCCL that reads the variable `name`: a plugin, a framework, a build. None: none that is
    known."""
    if name in OTHER_READERS:
        return OTHER_READERS[name]
    return next((plugin for prefix, plugin in PLUGIN_PREFIXES.items() if name.startswith(prefix)), None)


def may_be_shown(name: str) -> bool:
    """Whether the value of the variable `name` may stand in reports and files: NCCL or a plugin that is known reads it,
    and it is none that only the ranks may know. The value of any other variable may be a password."""
    return (name in variables() or other_reader(name) is not None) and name not in SECRET


def shown(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables whose values may be shown."""
    return {name: value for name, value in environment.items() if may_be_shown(name)}


def parse_version(text: str) -> Version:
    """`2.27.5` and `2.27.5+cuda12.9` as (2, 27, 5); () where `text` is no version."""
    words = text.strip().split("+")[0].split("-")[0].split(".")
    return tuple(map(int, words)) if all(map(_VERSION_WORD.fullmatch, words)) else ()


def version_of_code(code: int) -> str:
    """NCCL_VERSION_CODE as people write it: 22705 is 2.27.5. Before 2.9 the code had one digit less: 2708 is 2.7.8."""
    thousands = 10_000 if code >= 10_000 else 1_000
    return f"{code // thousands}.{code % thousands // 100}.{code % 100}"


# Parses values of variables as NCCL does, and finds what is wrong with them.
#
# NCCL accepts wrong values without a message: it reads numbers with strtoll, so that `true` is 0 and `4M` is 4; it
# ignores a level in lower case; a list with an unknown word is an error since 2.24 and was ignored before.

LEVELS: Final = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")  # topoPathTypeStr
_ALGORITHMS = ["tree", "ring", "collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"]
_PROTOCOLS = ["ll", "ll128", "simple"]
_FUNCTIONS = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce", "sendrecv", "allgatherv"]
_NUMBER = re.compile(r"[ \t]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_STRICT_LISTS: Final[Version] = (2, 24)
_MORE_CTAS: Final[Version] = (2, 25)


class ValueProblem(NamedTuple):
    """The problem of a value."""

    text: str
    ignored: bool
    """True: NCCL goes on as if the variable were not set. False: NCCL takes a value that was not meant."""


def parse_number(value: str) -> int:
    """The number that strtoll(value, NULL, 0) returns: the one with which the value begins, else 0."""
    match = _NUMBER.match(value)
    if match is None:
        return 0
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    return int(match[1] + digits, base)


def parse_level(value: str) -> str | None:
    """The distance in NCCL_P2P_LEVEL or NCCL_NET_GDR_LEVEL, one of LEVELS; None where NCCL ignores the value. Numbers
    are the old style: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and more SYS."""
    if value in LEVELS:
        return value
    if value[:1].isdecimal() and value[:1].isascii():
        return ("LOC", "PIX", "PXB", "PHB", "SYS")[min(parse_number(value), 4)]
    return None


def check_value(variable: Variable, value: str, version: Version) -> ValueProblem | None:
    """The problem of this value for NCCL of `version` (`()`: not known); None: nothing."""
    allowed = variable.values
    if not allowed or not value:  # NCCL takes an empty value for none
        return None
    if allowed == "level":
        return None if parse_level(value) else _ignored(f"NCCL sees only {' '.join(LEVELS)}, in capitals")
    if allowed in ("algo", "proto"):
        return _check_list(value, _ALGORITHMS if allowed == "algo" else _PROTOCOLS, version)
    if allowed == "netdevs":
        known = re.fullmatch(r"(?i)auto|all|max:[1-9][0-9]*", value)
        return None if known else _ignored("NCCL takes AUTO, ALL or MAX:N")
    if allowed == "int" or ".." in allowed:
        return _check_number(variable, value, version)
    words = allowed.split(",")
    return None if value.upper() in map(str.upper, words) else _ignored(f"NCCL takes {', '.join(words)}")


def _check_number(variable: Variable, value: str, version: Version) -> ValueProblem | None:
    read = parse_number(value)
    match = _NUMBER.match(value)
    if match is None or value[match.end() :].strip():
        return ValueProblem(f"NCCL reads it as the number {read}", ignored=str(read) == variable.default)
    low, _, high = variable.values.partition("..")
    if variable.values == "int":
        return None
    if variable.name in ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS") and () < version < _MORE_CTAS:
        high = "32"
    if read < int(low) or (high and read > int(high)):
        return ValueProblem(f"NCCL takes {low} to {high}" if high else f"NCCL takes {low} and more", ignored=False)
    return None


def _check_list(value: str, known: list[str], version: Version) -> ValueProblem | None:
    strict = version >= _STRICT_LISTS if version else False
    if version and not strict and (":" in value or ";" in value):
        return _ignored("choices per function are understood since 2.24")
    for part in value.lower().split(";"):
        function, colon, names = part.rpartition(":")
        if colon and function.strip() not in _FUNCTIONS:
            return ValueProblem(f"{function.strip()!r} is no function of NCCL", ignored=not strict)
        for word in names.strip().removeprefix("^").split(","):
            if word.strip() not in known:
                return ValueProblem(f"{word.strip()!r} is none of {', '.join(known)}", ignored=not strict)
    return None


def _ignored(text: str) -> ValueProblem:
    return ValueProblem(text, ignored=True)


# Parses NCCL's settings files (/etc/nccl.conf, ~/.nccl.conf) as NCCL does. Pure.
#
# A line is NAME=VALUE, and NCCL trims nothing but the end of the line: a blank or a quote is a part of the name or the
# value (src/misc/param.cc). `#` begins a comment only as the first character of a line.

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
