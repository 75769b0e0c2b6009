"""Recordings of a small job, as lines of JSON."""

import json
from pathlib import Path
from typing import Any

HEAD = {"laggard_recording": 1, "job_id": "j"}


def lines(rank: int, slow: float = 0.0, steps: int = 20) -> list[dict[str, Any]]:
    """A rank that computes 0.1 s (or more) a step and then waits, on a clock of its own, for a step of 0.3 s."""
    offset = 1000.0 * rank
    found: list[dict[str, Any]] = [
        {"kind": "rank", "rank": rank, "node": f"n{rank}", "groups": {"g": {"role": "dp", "ranks": [0, 1]}}}
    ]
    for step in range(steps):
        start = offset + 0.3 * step
        done = start + 0.1 + slow
        found += [
            {"kind": "span", "rank": rank, "step": step, "name": "forward", "start": start, "end": done},
            {"kind": "span", "rank": rank, "step": step, "name": "backward", "start": done, "end": start + 0.3},
            {"kind": "collective", "rank": rank, "step": step, "group": "g", "op": "all_reduce", "seq": step,
             "issued": done, "start": done, "end": start + 0.3},
            {"kind": "step", "rank": rank, "step": step, "start": start, "end": start + 0.3},
        ]  # fmt: skip
    return found


def write(path: Path, records: list[dict[str, Any]], **head: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in [{**HEAD, **head}, *records]))
    return path
