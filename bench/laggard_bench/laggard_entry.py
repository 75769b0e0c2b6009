"""laggard's entry: asks `laggard locate --trace` about a case, by its command line alone.

python laggard_bench/score.py CASES laggard_bench/laggard_entry.py
"""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from laggard.cli import main as laggard

KINDS = {
    "slow_compute": "compute",
    "slow_host": "host",
    "slow_input": "host",
    "slow_link": "link",
    "hung": "hang",
    "dead": "dead",
    "uneven_work": "imbalance",
    "busy_threads": "host",
}
"""laggard's kinds of culprits (docs/development/contracts.md) in the words of the benchmark."""
MAX_ERROR = 300
"""How many characters of an error are told."""


def locate(case: Path) -> dict[str, Any]:
    """Its answer on one case. An error of laggard's is an answer that says nothing, and tells the error."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        laggard(["locate", "--trace", str(case / "recording"), "--format", "json"])
        printed.flush()
    document = json.loads(printed.buffer.getvalue())
    if document.get("schema") != "laggard.location/1":
        return {"verdict": "unknown", "culprits": [], "error": str(document.get("error", ""))[:MAX_ERROR]}
    return translated(document)


def translated(document: dict[str, Any]) -> dict[str, Any]:
    """A `laggard.location/1` as an answer of the benchmark."""
    culprits = [culprit(each) for each in document.get("culprits", [])]
    kinds = {each["kind"] for each in culprits}
    notes = {note["kind"] for note in document.get("notes", [])}
    verdict = document.get("verdict", "unknown")
    if verdict == "fail":
        hangs = bool(kinds & {"hang"}) or bool(notes & {"deadlock", "mismatch", "hang"})
        verdict = "dead" if "dead" in kinds else "hang" if hangs else "slow"
        if kinds == {"imbalance"}:
            verdict = "ok"  # work that is unevenly divided is no machine's fault
    elif verdict not in ("ok", "unknown"):
        verdict = "unknown"
    return {"verdict": verdict, "culprits": culprits, "suspects": _suspects(document)}


def _suspects(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Those for whom others wait, where laggard names them in a note and accuses nobody."""
    notes = [note for note in document.get("notes", []) if note["kind"] == "not_arrived"]
    return [{"kind": "hang", "ranks": list(note.get("ranks", [])), "nodes": []} for note in notes]


def culprit(each: dict[str, Any]) -> dict[str, Any]:
    kind = KINDS.get(each["kind"], "other")
    nodes = list(each.get("nodes") or ([each["node"]] if each.get("node") else []))
    found: dict[str, Any] = {"kind": kind, "ranks": list(each.get("ranks", [])), "nodes": nodes}
    ends = sorted({end.get("node", "") for end in each.get("link") or ()} - {""})
    if kind == "link" and not nodes:
        found["nodes"] = ends
        if len(ends) == 2:
            found["between"] = ends
    return found
