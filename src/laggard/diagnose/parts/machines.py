"""Cuts the output of one command on many machines into that of each: pdsh and clush (`n1: ` before each line), clush -b
and dshbak (a name between two rules), Ansible (`n1 | CHANGED | rc=0 >>`)."""

from __future__ import annotations

import re
from typing import Final

from laggard.diagnose.parts.part import MAX_PARTS, Part

_MIN_SHARE: Final = 0.9
_HEAD = re.compile(r"([A-Za-z][\w-]{0,62}(?:\.[\w-]{1,62}){0,6}):(?: |$)", re.MULTILINE)
_FIRST = re.compile(rf"\s*(?:{_HEAD.pattern})", re.MULTILINE)
_NUMBERED = re.compile(r"\d")
_NAME: Final = r"[A-Za-z][\w.-]{0,62}(?:\[[\d,-]{1,80}\])?"
_BANNER = re.compile(rf"^-{{4,}}\n({_NAME}(?:,{_NAME}){{0,99}})(?: \(\d+\))?\n-{{4,}}\n", re.MULTILINE)
_ANSIBLE = re.compile(r"^([A-Za-z][\w.-]{0,62}) \| (?:CHANGED|SUCCESS|FAILED!?)(?: \| rc=\d+)? (?:>>|=>)\s*?\n", re.M)


def split_machines(text: str) -> tuple[Part, ...]:
    """Returns a part for each machine; none where the text names no machines this way."""
    return split_lines(text) or _by_banners(text, _BANNER) or _by_banners(text, _ANSIBLE)


def split_lines(text: str) -> tuple[Part, ...]:
    """Returns a part for each machine whose name stands before each of its lines; none where they do not."""
    if not _FIRST.match(text):  # before all lines are made, which take more than the text
        return ()
    lines = [line for line in text.splitlines() if line.strip()]
    by_host: dict[str, list[str]] = {}
    strange = 0
    for line in lines:
        head = _HEAD.match(line)
        if head and (head[1] in by_host or len(by_host) < MAX_PARTS):
            by_host.setdefault(head[1], []).append(line[head.end() :] + "\n")
        else:
            strange += 1
    several = len(by_host) <= len(lines) // 2 or all(map(_NUMBERED.search, by_host))
    if not several or strange > (1 - _MIN_SHARE) * len(lines):
        return ()
    return tuple(Part(host, host, "".join(rest)) for host, rest in by_host.items())


def _by_banners(text: str, pattern: re.Pattern[str]) -> tuple[Part, ...]:
    heads = list(pattern.finditer(text))[:MAX_PARTS]
    ends = [*(head.start() for head in heads), len(text)][1:]
    return tuple(Part(head[1], head[1], text[head.end() : end]) for head, end in zip(heads, ends, strict=True))
