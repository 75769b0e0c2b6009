"""The states of processes, as `ps`, `top` and /proc/PID/status show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

_MAX_ROWS: Final = 8192
_STATES: Final = ("STAT", "S")
_COMMANDS: Final = ("COMMAND", "CMD", "ARGS")
_PERCENT = re.compile(r"\d{1,5}(?:\.\d{1,3})?")
_STATE = re.compile(r"[A-Z][A-Za-z<+]{0,5}")
_STATUS = re.compile(r"^State:[ \t]+([A-Za-z])\b[^\n]{0,40}$", re.MULTILINE)
_STATUS_PID = re.compile(r"^Pid:[ \t]+(\d{1,10})$", re.MULTILINE)
_NODE_RANK = re.compile(r"--(?:node[-_]rank|machine[-_]rank)[= ](\d{1,6})\b")
_PER_NODE = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]gpus)[= ](\d{1,4})\b")
_LOCAL_RANK = re.compile(r"--local[-_]rank[= ](\d{1,5})\b")

UNANSWERED_HEAD: Final = re.compile(r"rank \d{1,10} runs as pid \d{1,10} on host \S{0,260}, and wrote no stacks\n")
"""The first line about a rank that another one saw, as parts/own_stacks.py writes it."""


class Process(NamedTuple):
    """`state`: its letters, as `Ssl` or `T`. `waits`: the kernel's function that it sleeps in."""

    pid: int
    state: str
    line: str
    parent: int | None = None
    waits: str = ""
    command: str = ""
    cpu: float | None = None
    """The percent of a core that it uses now, as `top` tells it; what `ps` tells is the mean of its life."""


def processes(text: str) -> tuple[Process, ...]:
    return (*_rows(text.splitlines()), *_of_status(text))


def ranks_by_launcher(rows: Sequence[Process]) -> dict[int, int]:
    """Returns the ranks by process, where a launcher's command line tells the number of its node: its children have the
    ranks from there on."""
    ranks: dict[int, int] = {}
    for launcher in rows:
        node, each = _NODE_RANK.search(launcher.command), _PER_NODE.search(launcher.command)
        if node is None:
            continue
        children = sorted(row.pid for row in rows if row.parent == launcher.pid)
        count = int(each[1]) if each else 1
        if len(children) == count:
            ranks |= {pid: int(node[1]) * count + place for place, pid in enumerate(children)}
    return ranks


def local_rank(process: Process) -> int | None:
    found = _LOCAL_RANK.search(process.command)
    return int(found[1]) if found else None


def _rows(lines: Iterable[str]) -> Iterator[Process]:
    columns: list[str] = []
    for number, line in enumerate(lines):
        words = line.split()
        if number >= _MAX_ROWS:
            return
        if "PID" in words and any(name in words for name in _STATES):
            columns = words if words[-1] in _COMMANDS else [*words, "COMMAND"]
        elif columns and len(words) >= len(columns) - 1 and (row := _row(line, columns)):
            yield row


def _row(line: str, columns: Sequence[str]) -> Process | None:
    values = dict(zip(columns, line.split(None, len(columns) - 1), strict=False))
    state = values.get("STAT") or values.get("S") or ""
    parent = values.get("PPID", "")
    if not values["PID"].isdigit() or not _STATE.fullmatch(state):
        return None
    cpu = values.get("%CPU", "") if "TIME+" in columns else ""
    return Process(
        int(values["PID"][:10]),
        state,
        line.strip(),
        int(parent[:10]) if parent.isdigit() else None,
        values.get("WCHAN", ""),
        values.get("COMMAND") or values.get("CMD") or values.get("ARGS") or "",
        float(cpu) if _PERCENT.fullmatch(cpu) else None,
    )


def _of_status(text: str) -> Iterator[Process]:
    for state in list(_STATUS.finditer(text))[:64]:
        if pid := _STATUS_PID.search(text, state.end(), state.end() + 400):
            yield Process(int(pid[1]), state[1], state[0].strip())
