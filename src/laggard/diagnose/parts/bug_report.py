"""Cuts the log of nvidia-bug-report.sh into its sections: each begins with a rule and the command or file that follows
it (`____`, `/bin/dmesg`; `*** /proc/driver/nvidia/./version`)."""

from __future__ import annotations

import re
from typing import Final

from laggard.diagnose.parts.part import MAX_PARTS, Part

_MARK: Final = "Start of NVIDIA bug report log file"
_MARK_CHARACTERS: Final = 4096
_SECTION = re.compile(r"^(?:_{20,}\n+([^\n]{0,400})|\*\*\* (/[^\n]{1,400}))\n", re.MULTILINE)
_HOST = re.compile(r"^uname: \w+ ([\w.-]{1,64}) ", re.MULTILINE)


def split_bug_report(text: str) -> tuple[Part, ...]:
    """Returns a part for each section; none where the text is no such report."""
    if _MARK not in text[:_MARK_CHARACTERS]:
        return ()
    named = _HOST.search(text[: 4 * _MARK_CHARACTERS])
    host = named[1] if named else ""
    heads = list(_SECTION.finditer(text))[:MAX_PARTS]
    ends = [*(head.start() for head in heads), len(text)][1:]
    return tuple(
        Part((head[1] or head[2]).strip(), host, text[head.end() : end].strip("\n") + "\n")
        for head, end in zip(heads, ends, strict=True)
        if text[head.end() : end].strip()
    )
