"""Cuts what somebody copied out of a terminal into the outputs of its commands.

A prompt is known by its user and machine (`ada@n1:~$ `, `[root@n1 ~]# `, `(env) ada@n1:~$ `), or by its machine alone
(`n1:~ # `), or it is bare: `$ ` before anything, `# `, `> ` and the `+ ` of `set -x` before the name of a tool alone,
since comments begin so too.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from laggard.diagnose.parts.part import MAX_PARTS, Part

MAX_SESSION_CHARACTERS: Final = 4 << 20
"""The longest text that is taken for something that was copied out of a terminal."""
_MAX_COMMAND_CHARACTERS: Final = 200

_TOOLS: Final = (
    r"(?:sudo +(?:-\w+ +)*)?(?:/\S{1,80}/)?"
    r"(?:nvidia-\w+|dcgmi|rocm-smi|amd-smi|hl-smi|lspci|lsmod|dmesg|journalctl|systemctl|service|modprobe|dkms|modinfo"
    r"|ib\w+|rdma|mlx\w+|ethtool|ip|df|free|cat|grep|uname|numactl|ulimit|scontrol|sinfo|squeue|kubectl|docker|env"
    r"|mst|perfquery|mount|lsblk|lscpu|sensors|ipmitool|nvbandwidth)\b"
)
_PROMPTS: Final = (
    re.compile(
        r"(?:\([\w. /-]{1,40}\) ?){0,2}\[?(?P<user>[\w.-]{1,40})@(?P<host>[\w.-]{1,64})"
        r"(?::[^\s$#%>]{0,120}|[ ][^\s$#%>\]]{1,120})?\]? ?[$#%>] ?(?P<command>\S.{0,400})?$"
    ),
    re.compile(rf"(?P<host>[a-zA-Z][\w.-]{{0,64}})(?::\S{{1,80}})? ?[#$>] ?(?P<command>{_TOOLS}.{{0,400}})$"),
    re.compile(r"[$%] (?P<command>[a-z./]\S{0,80}(?: .{0,400})?)$"),
    re.compile(rf"(?:[#>]|\++) (?P<command>{_TOOLS}.{{0,400}})$"),
)


class Prompt(NamedTuple):
    """A line that begins with a prompt. Empty: it has no command, or does not name the host."""

    command: str
    host: str


def split_session(text: str) -> tuple[Part, ...]:
    """Returns an output for each command; none where no line is a prompt with a command."""
    parts: list[Part] = []
    name, host, lines = "", "", list[str]()
    for line in text.splitlines(True):
        prompt = prompt_of(line)
        if prompt is None or len(parts) >= MAX_PARTS:
            lines.append(line)
            continue
        parts.append(Part(name, host, "".join(lines)))
        lines = []
        name, host = prompt.command[:_MAX_COMMAND_CHARACTERS], prompt.host
    parts.append(Part(name, host, "".join(lines)))
    return tuple(part for part in parts if part.text.strip()) if any(part.name for part in parts) else ()


def prompt_of(line: str) -> Prompt | None:
    """Returns the prompt that a line begins with; None where it has none."""
    line = line.rstrip()
    found = next((found for pattern in _PROMPTS if (found := pattern.match(line))), None) if len(line) < 600 else None
    if found is None:
        return None
    return Prompt((found["command"] or "").strip(), found.groupdict().get("host") or "")
