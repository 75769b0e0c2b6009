"""The formats `ps with states` and `torch_extensions`: processes that wait in the kernel (state D), or for a lock
that a build left behind.

Source: PyTorch (torch/utils/cpp_extension.py, torch/utils/file_baton.py): the file `lock` has no owner and no time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.section import Section, paste_format
from laggard.diagnose.rules import patterns, table
from laggard.model import Finding
from laggard.probes.probe import Fact

_P: Final = patterns("paste_forms", "stuck_processes_")

WAITS: Final = table("waits").rows
_NAMES: Final = "|".join(row.pattern for row in WAITS)
_LINE: Final = re.compile(
    r"^[ \t]*(?:\S+[ \t]+)??(\d{1,10})[ \t]+(?:\S+[ \t]+){0,6}?D[a-zN<+]{0,4}[ \t]+"
    rf"(?:\S+[ \t]+){{0,4}}?({_NAMES})[ \t]+(.*)$",
    re.MULTILINE,
)
MIN_SECONDS: Final = 120
"""The shortest time for which a process hangs: less may be a slow read."""


def read_processes(section: Section) -> Iterator[Finding | Fact]:
    found: dict[str, list[tuple[str, str, str]]] = {}
    lines = _LINE.findall(section.text)[:4096]
    yield Fact("processes_in_state_d", len(lines))
    for pid, wait, rest in lines:
        if _seconds(rest) >= MIN_SECONDS or not _P["elapsed"].search(rest):
            row = next(row for row in WAITS if row.regex.fullmatch(wait))
            found.setdefault(row.says, []).append((pid, wait, rest))
    for system, rows in found.items():
        row = next(row for row in WAITS if row.says == system)
        pids = ", ".join(pid for pid, _, _ in rows[:4])
        told = f"does not answer: processes {pids} hang in the kernel (D state, {rows[0][1]})"
        evidence = {"processes": [pid for pid, _, _ in rows[:16]], "line": " ".join(rows[0])[:300]}
        yield row._replace(device=system, says=told).found(evidence)


def _seconds(rest: str) -> int:
    match = _P["elapsed"].search(rest)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


STUCK_PROCESSES: Final = paste_format("ps", _LINE, read_processes)


_LOCK: Final = _P["lock"]
_WAIT: Final = re.compile(r"wait \(torch/utils/file_baton\.py|file_baton\.py\", line \d+, in wait")
_HEAD: Final = re.compile(rf"{_LOCK.pattern}|{_WAIT.pattern}", re.MULTILINE)


def read_torch_lock(section: Section) -> Iterator[Finding | Fact]:
    text = f"{section.command}\n{section.text}"
    folder, lock, waits = (
        _P["folder"].search(text),
        _LOCK.search(section.text),
        _WAIT.search(section.text),
    )
    yield Fact("waits_for_a_lock", bool(waits))
    if not waits and not (folder and lock):
        return
    where = folder[0].rstrip("/:") if folder else "~/.cache/torch_extensions"
    evidence = {"lock_since": lock[1] if lock else None, "waits": bool(waits)}
    yield table("pastes").sections["lock"].found(evidence, where=where, since=f" (since {lock[1]})" if lock else "")


TORCH_LOCK: Final = paste_format("torch_extensions", _HEAD, read_torch_lock)
