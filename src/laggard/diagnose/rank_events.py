"""The files in which a rank under laggard wrote where it stood when its job stood still: its phase, the collective in
flight, and how many of each operation it had entered and ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.json_document import documents, list_of, text_of
from laggard.text.words import ascii_line, counted

_KEY: Final = '"laggard_events"'
_MAX_NAMED: Final = 4


def recognise(content: FileContent) -> bool:
    return content.text[:64].lstrip().startswith("{" + _KEY)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    """Accuses nobody: who is late shows beside the files of the other ranks."""
    values = [value for value in documents(content) if isinstance(value, dict)]
    return FileJudgement(facts={"stands": ascii_line(_stands(values[0]))} if values else {})


def _stands(value: dict[str, Any]) -> str:
    open_lanes = [lane for lane in list_of(value, "lanes") if isinstance(lane, dict) and _open(lane)]
    phase = text_of(value, "phase").replace("_", " ") or "no phase"
    waits = ", ".join(_names(open_lanes)) or "no collective"
    return f"step {value.get('step')}, {phase}, in {waits}"


def _open(lane: dict[str, Any]) -> bool:
    entered, done = lane.get("entered"), lane.get("done")
    return isinstance(entered, int) and isinstance(done, int) and entered > done


def _names(lanes: list[dict[str, Any]]) -> Iterable[str]:
    for lane in lanes[:_MAX_NAMED]:
        yield f"{text_of(lane, 'op')} of {text_of(lane, 'group')}"
    if len(lanes) > _MAX_NAMED:
        yield counted(len(lanes) - _MAX_NAMED, "more")


RANK_EVENTS: Final = FileFormat("rank's state at a standstill", recognise, judge)
