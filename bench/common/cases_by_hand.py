"""Small cases of laggard-bench, written by hand."""

import json
from pathlib import Path
from typing import Any

RANKS = 4


def line(kind: str, rank: int, **more: Any) -> str:
    return json.dumps({"kind": kind, "rank": rank, **more}) + "\n"


def make_case(folder: Path, name: str, slow: int | None) -> Path:
    """A job of four ranks on two machines, of which one may be slow by half."""
    (folder / name / "recording").mkdir(parents=True)
    for rank in range(RANKS):
        text = json.dumps({"laggard_recording": 1, "job_id": "7", "ends": True, "beats": True}) + "\n"
        groups = {"world:0+1x4": {"role": "world", "ranks": [0, 1, 2, 3]}}
        text += line("rank", rank, node=f"n{rank // 2}", local_rank=rank % 2, groups=groups)
        for step in range(5):
            end = step + (0.6 if rank == slow else 0.4)
            text += line("span", rank, step=step, name="forward", start=float(step), end=end, micro=0)
            text += line("step", rank, step=step, start=float(step), end=step + 1.0)
        (folder / name / "recording" / f"rank-{rank}.jsonl").write_text(text)
    write_truth(folder, name, slow)
    return folder / name


def write_truth(folder: Path, name: str, slow: int | None) -> None:
    culprit = {"kind": "compute", "ranks": [slow], "nodes": [f"n{(slow or 0) // 2}"]}
    fault = {"name": "gpu", "kind": "slow_compute", "how": "", "size": 0.5, "size_alone": 0.5, "size_of_run": 0.5}
    fault |= {"first_step": 0, "accepted": [culprit], "same_in_any_recording": [], "optional": ""}
    truth = {"schema": "laggard-bench.truth/1", "case": name, "seed": 1, "family": "gpu", "ranks": RANKS, "nodes": 2}
    truth |= {"steps": 5, "layout": {}, "recorded": [], "step_seconds": 1.0, "tolerated": [], "why": "", "lines": 48}
    truth |= {"verdicts": ["ok"] if slow is None else ["slow"], "faults": [] if slow is None else [fault]}
    (folder / name / "truth.json").write_text(json.dumps(truth))
