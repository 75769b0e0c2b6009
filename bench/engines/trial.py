"""One run of an engine in a case: started, watched until it ends or stands still, and asked about."""

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engines.cases import LIMIT_SECONDS, Case
from engines.catalogue import Engine
from engines.live import Live
from engines.processes import Job, Servers
from laggard.locate.describe import sentence
from laggard.model import Location
from laggard.rankfile import RankFileReader
from laggard.wire import decode, encode

LOCATE_IMPORTS = ("numpy", "laggard.collector.locate_command.recording")
LOOK_SECONDS = 0.25
ENDED_SECONDS = 4.0
"""After the end of a job a collector knows of it."""


class Bench(NamedTuple):
    """What all runs share. `steps`: of each."""

    servers: Servers
    live: Live
    folder: Path
    steps: int


def run(bench: Bench, engine: Engine, case: Case, number: int, hooks: bool = True) -> dict[str, Any]:
    """Runs the job. Returns what happened, and what was said: `recorded`, `live` and the sentences of both."""
    folder = Path(tempfile.mkdtemp(dir=bench.folder))
    job_id = f"{engine.name}-{case.name}-{folder.name}"
    mark = folder / "fault"
    environment = {
        "ENGINE_CASE": case.name,
        "ENGINE_VICTIM": str(engine.befallen(case.name)),
        "ENGINE_STEPS": str(bench.steps),
        "ENGINE_MARK": str(mark),
        "ENGINE_ODD_COLLECTIVE": ("extra", "missing")[number % 2],
        "LAGGARD_RANK_DIR": str(bench.live.ranks),
        "LAGGARD_JOB_ID": job_id,
        "LAGGARD_NODE": "n0",
        "LAGGARD_RECORD_DIR": str(folder / "recording") if hooks else "",
    }
    began = time.monotonic()
    job = Job(engine, environment, hooks, folder, bench.servers)
    try:
        _watch(case, job, mark)
        live = _live_answer(bench.live, job_id, job.has_ended()) if hooks else {}
    finally:
        statuses, outputs, errors = job.end()
    seconds = time.monotonic() - began
    result: dict[str, Any] = {
        "seconds": round(seconds, 1),
        "statuses": statuses,
        "befell": mark.exists(),
        "results": _results(outputs),
        "last_words": [text[-1500:] for text in errors] if any(statuses) else [],
    }
    if hooks:
        recorded = _locate(bench, first_attempt(folder / "recording"))
        result |= {"recorded": recorded, "live": live, "steps": steps_recorded(folder / "recording")}
        result |= {"said": _said(recorded), "said_live": _said(live), **_counters(bench.live.ranks, job_id)}
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _watch(case: Case, job: Job, mark: Path) -> None:
    """Returns when the job has ended, or has stood for long enough that both answers can be right."""
    began, befell = time.monotonic(), 0.0
    while not job.has_ended():
        now = time.monotonic()
        befell = befell or (now if mark.exists() else 0.0)
        if now - began > LIMIT_SECONDS or (befell and now - befell > case.stands):
            return
        time.sleep(LOOK_SECONDS)


def _live_answer(live: Live, job_id: str, ended: bool) -> dict[str, Any]:
    """The collector's answer; about a job that has ended, the first that says so, as of whoever looks then. An agent
    looks at its ranks once a second."""
    until = time.monotonic() + (ENDED_SECONDS if ended else 0.0)
    while True:
        location = live.location(job_id)
        is_told = any(note["kind"] == "ended" for note in location.get("notes", ()))
        if is_told or time.monotonic() >= until:
            return location
        time.sleep(LOOK_SECONDS)


def first_attempt(recording: Path) -> list[Path]:
    """The recording, or where a launcher has started the job anew the files of the ranks before that."""
    restarted = any(recording.glob("rank-*.*.jsonl"))
    first = [path for path in recording.glob("rank-*.jsonl") if path.name.count(".") == 1]
    return first if restarted and first else [recording]


def _locate(bench: Bench, recording: Sequence[Path]) -> dict[str, Any]:
    words = ["-m", "laggard", "locate", "--trace", *map(str, recording), "--format", "json"]
    process = bench.servers.start(LOCATE_IMPORTS, words, {"LAGGARD_STATE_DIR": "/nonexistent"})
    out, errors = process.communicate(timeout=120)
    try:
        document: dict[str, Any] = json.loads(out)
    except ValueError:
        return {"error": f"locate printed no JSON: {errors[-300:]}"}
    return document


def _said(location: Mapping[str, Any]) -> str:
    if "error" in location or not location:
        return str(location.get("error", "nothing"))
    return sentence(decode(encode(location), Location))


def _results(outputs: list[str]) -> list[dict[str, Any]]:
    """What the ranks have computed, in the order of their numbers."""
    lines = [line for text in outputs for line in text.splitlines()]
    found = [json.loads(line[line.index("{") :]) for line in lines if "RESULT {" in line]
    return sorted(found, key=lambda result: int(result["rank"]))


def steps_recorded(recording: Path) -> dict[str, int]:
    """How many steps the recording has of each rank, in all attempts."""
    counts: Counter[str] = Counter()
    for path in recording.rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record.get("kind") == "step":
                counts[str(record["rank"])] += 1
    return dict(counts)


def _counters(ranks: Path, job_id: str) -> dict[str, int]:
    """What the hooks count of themselves, in all ranks: errors of their own, and collectives that they lost."""
    errors = lost = 0
    for path in ranks.rglob("*.rank"):
        try:
            with RankFileReader(str(path)) as file:
                if file.identity["job_id"] == job_id and (counters := file.counters()) is not None:
                    errors, lost = errors + counters.errors, lost + counters.lost
                    os.unlink(path)
        except (OSError, ValueError):
            continue
    return {"errors": errors, "lost": lost}
