"""Whether what was said of a training is what befell it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from stack_jobs.cases import HEALTHY, HUNG, Case, Place, places

LIVE, RECORDED, FOLDER = "live", "recorded", "folder"
"""Where it was said: by a collector, of the recording, and of the hang folder alone."""


NOTES = ("stacks", "starting")
"""The notes that tell of the code; the second, of processes that have made no step."""


class Judgement(NamedTuple):
    """`mark`: right, partly, wrong, silent. `culprits`: whom it named. `told`: what of the code was said."""

    mark: str
    why: str
    verdict: str
    culprits: list[str]
    told: list[str]
    notes: list[str]


def judged(case: Case, kept: Path, expected: list[Place]) -> dict[str, Judgement]:
    """Compares what was said with what the case is, and with the lines that it had: by how it was said."""
    found = {LIVE: _live(case, kept, expected), RECORDED: _of_file(case, kept / "said.json", expected)}
    if case.kind == HUNG:
        found[FOLDER] = _of_file(case, kept / "folder.json", expected)
    return found


def _of_file(case: Case, path: Path, expected: list[Place]) -> Judgement:
    try:
        return _judgement(case, json.loads(path.read_text()), expected)
    except (OSError, ValueError):
        return Judgement("silent", "there is no answer", "", [], [], [])


def _live(case: Case, kept: Path, expected: list[Place]) -> Judgement:
    """Of the last answer; wrong where any answer before was."""
    try:
        seen = json.loads((kept / "live.json").read_text())
    except (OSError, ValueError):
        seen = []
    each = [_judgement(case, location, expected) for location in seen]
    if not each:
        return Judgement("silent", "there is no answer", "", [], [], [])
    if wrong := [one for one in each if one.mark == "wrong"]:
        return wrong[0]._replace(why=f"{wrong[0].why}, in {len(wrong)} of {len(each)} looks")
    return each[-1] if case.kind == HEALTHY else max(each[-1], *each[-2:], key=lambda one: one.mark != "silent")


def _judgement(case: Case, location: dict[str, Any], expected: list[Place]) -> Judgement:
    named = [f"{one['kind']} {one['ranks']}" for one in location["culprits"]]
    stacks = [one["stack"] for one in location["culprits"] if one.get("stack")]
    notes = [json.dumps(note) for note in location["notes"] if note["kind"] in NOTES and " in " in note["text"]]
    told = [stack["text"] for stack in stacks]
    mark, why = _mark(case, stacks, notes, expected)
    if any(case.kind == HEALTHY or case.victim not in one["ranks"] for one in location["culprits"]):
        mark, why = "wrong", "an innocent is accused"
    return Judgement(mark, why, location["verdict"], named, told, notes)


def _mark(case: Case, stacks: list[dict[str, Any]], notes: list[str], expected: list[Place]) -> tuple[str, str]:
    if case.kind == HEALTHY:
        return ("wrong", "an innocent's line") if stacks or notes else ("right", "")
    if not stacks and not notes:
        return "silent", ""
    own = [stack["text"] for stack in stacks if stack["rank"] == case.victim]
    apart = [told for note in notes for told in _of_rank(note, case.victim)]
    if _any_in(expected, own):
        return "right", ""
    if _any_in(expected, apart):
        return "right", "in a note"
    if _any_in(expected, notes):
        return "partly", "the line, not of which rank"
    if _any_in(places(case.fault, "through"), own + apart):
        return "partly", "the line through which it waits"
    if _any_in(expected, [frame for stack in stacks if stack["rank"] == case.victim for frame in stack["frames"]]):
        return "partly", "among the frames alone"
    if any(place.function in text and place.file in text for text in own + apart for place in expected):
        return "partly", "another line of the function"
    return "wrong", "another line" if own or apart else "another rank's"


def _any_in(expected: list[Place], texts: list[str]) -> bool:
    return any(place.is_in(text) for text in texts for place in expected)


def _of_rank(note: str, rank: int) -> list[str]:
    """What a note says of this rank alone: `...: rank 1 in f (a.py:3); ranks 0 and 2 in ...`."""
    return [told for told in note.split("; ") if f"rank {rank} in " in told]
