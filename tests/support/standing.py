"""Recordings of jobs that stood still and were ended early, with where each rank stood in the code."""

import json
from collections.abc import Mapping
from pathlib import Path

from laggard.stacks.sampled import STALLED, Counted, Frame, Sampled, Thread, encode, write

MODULE = Frame("<module>", "/home/u/train.py", 120)
WAIT = (Frame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9), MODULE)
BARRIER = (Frame("barrier", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9), MODULE)
FETCH = (Frame("fetch", "/home/u/data.py", 41), MODULE)
SAVE = (Frame("save", "/home/u/ckpt.py", 7), MODULE)
HEAD = '{"laggard_recording": 1, "job_id": "j", "ends": true, "beats": true}'


def took(rank: int, frames: tuple[Frame, ...], why: str = STALLED, at: float = 40.0, stalled: float = 31.0) -> Sampled:
    thread = Thread("MainThread", (Counted(1, frames),))
    return Sampled("j", rank, f"n{rank}", 100 + rank, why, at, 0.0, (thread,), stalled if why == STALLED else 0.0)


def recording(folder: Path, stands: Mapping[int, list[Sampled]], world: int = 0, in_folder: bool = False) -> str:
    """Ranks that finished twelve steps of DDP, whose collectives no hook sees, and then none; all were killed."""
    folder.mkdir()
    for rank, left in stands.items():
        about = f'"rank": {rank}, "node": "n{rank}", "world_size": {world or len(stands)}, "attempt": 0'
        lines = [HEAD, f'{{"kind": "rank", {about}, "unix_minus_clock": 0.0, "groups": {{}}}}']
        for step in range(12):
            at, of = 0.1 * step, f'"rank": {rank}, "step": {step}'
            lines.append(f'{{"kind": "span", {of}, "name": "forward", "start": {at}, "end": {at + 0.05}, "micro": 0}}')
            lines.append(f'{{"kind": "step", {of}, "start": {at}, "end": {at + 0.1}}}')
        beat = {"age_seconds": 0.0, "interval_seconds": 1.0, "flight_recorder": "off", "lanes": [], "groups": []}
        last = {
            "kind": "beat",
            "rank": rank,
            "quiet_seconds": 27.0,
            "last_step": 11,
            "phase": "forward",
            "in_flight": None,
        }
        lines.append(json.dumps({**last, "beat": beat}))
        for sampled in left:
            if in_folder:
                (folder / "hang-20261126T000000Z").mkdir(exist_ok=True)
                write(str(folder / "hang-20261126T000000Z" / f"rank-{rank}.stacks"), sampled)
            else:
                lines.append(f'{{"kind": "stacks", "rank": {rank}, "stacks": {encode(sampled).decode()}}}')
        (folder / f"rank-{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)
