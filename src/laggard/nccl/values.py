"""How NCCL reads a value, and what is wrong with one. Pure.

NCCL is lenient without a word: numbers go through strtoll, so that `true` is 0 and `4M` is 4; a level in lower case
is not seen at all; a list with an unknown word is an error since 2.24 and was passed over before.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from laggard.nccl.variable_table import Variable, Version

LEVELS: Final = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")  # topoPathTypeStr
_ALGORITHMS = ["tree", "ring", "collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"]
_PROTOCOLS = ["ll", "ll128", "simple"]
_FUNCTIONS = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce", "sendrecv", "allgatherv"]
_NUMBER = re.compile(r"[ \t]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_STRICT_LISTS: Final[Version] = (2, 24)
_MORE_CTAS: Final[Version] = (2, 25)


class Flaw(NamedTuple):
    """`lost`: NCCL goes on as if the variable were not set. Otherwise it takes something that was not meant."""

    text: str
    lost: bool


def number(value: str) -> int:
    """What strtoll(value, NULL, 0) makes of it: the number that it begins with, else 0."""
    match = _NUMBER.match(value)
    if match is None:
        return 0
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    return int(match[1] + digits, base)


def level(value: str) -> str | None:
    """The distance that NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL mean; None where NCCL does not see the value. Numbers
    are the old style: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and more SYS."""
    if value in LEVELS:
        return value
    if value[:1].isdecimal() and value[:1].isascii():
        return ("LOC", "PIX", "PXB", "PHB", "SYS")[min(number(value), 4)]
    return None


def flaw(variable: Variable, value: str, version: Version) -> Flaw | None:
    """What is wrong with this value for NCCL of `version` (`()`: not known); None: nothing."""
    form = variable.values
    if not form or not value:  # NCCL takes an empty value for none
        return None
    if form == "level":
        return None if level(value) else _lost(f"NCCL sees only {' '.join(LEVELS)}, in capitals")
    if form in ("algo", "proto"):
        return _list_flaw(value, _ALGORITHMS if form == "algo" else _PROTOCOLS, version)
    if form == "netdevs":
        known = re.fullmatch(r"(?i)auto|all|max:[1-9][0-9]*", value)
        return None if known else _lost("NCCL takes AUTO, ALL or MAX:N")
    if form == "int" or ".." in form:
        return _number_flaw(variable, value, version)
    words = form.split(",")
    return None if value.upper() in map(str.upper, words) else _lost(f"NCCL takes {', '.join(words)}")


def _number_flaw(variable: Variable, value: str, version: Version) -> Flaw | None:
    read = number(value)
    match = _NUMBER.match(value)
    if match is None or value[match.end() :].strip():
        return Flaw(f"NCCL reads it as the number {read}", lost=str(read) == variable.default)
    low, _, high = variable.values.partition("..")
    if variable.values == "int":
        return None
    if variable.name in ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS") and () < version < _MORE_CTAS:
        high = "32"
    if read < int(low) or (high and read > int(high)):
        return Flaw(f"NCCL takes {low} to {high}" if high else f"NCCL takes {low} and more", lost=False)
    return None


def _list_flaw(value: str, known: list[str], version: Version) -> Flaw | None:
    strict = version >= _STRICT_LISTS if version else False
    if version and not strict and (":" in value or ";" in value):
        return _lost("choices per function are understood since 2.24")
    for part in value.lower().split(";"):
        function, colon, names = part.rpartition(":")
        if colon and function.strip() not in _FUNCTIONS:
            return Flaw(f"{function.strip()!r} is no function of NCCL", lost=not strict)
        for word in names.strip().removeprefix("^").split(","):
            if word.strip() not in known:
                return Flaw(f"{word.strip()!r} is none of {', '.join(known)}", lost=not strict)
    return None


def _lost(text: str) -> Flaw:
    return Flaw(text, lost=True)
