"""Makes cases: each a folder with the recording of a job, and the truth. Seed and number give the same case again."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from laggard_bench.lasting import Lasting

from fluid_simulator.families import families
from fluid_simulator.happened import Happened
from fluid_simulator.happenings import happen
from fluid_simulator.innocence import draw_plan
from fluid_simulator.lasting import add_lasting
from fluid_simulator.losses import Losses, draw_losses, excuse
from fluid_simulator.plan import Plan
from fluid_simulator.recording import draw_recording
from fluid_simulator.run import Deadlock

ATTEMPTS = 40
"""The number of jobs that are drawn at most, until one has a place for what its family wants."""
MAX_CASE_SEED = 1 << 40


class NoCase(Exception):
    """No job was drawn that has a place for what the family wants."""


def family_of(seed: int, number: int) -> str:
    every = families(seed)
    return every[number % len(every)]


def draw(seed: int, number: int, family: str, attempt: int = 0) -> tuple[np.random.Generator, Plan | None]:
    """The plan of an attempt at a case, and what draws all that follows. None: the job would be too large."""
    rng = np.random.default_rng([seed, number, attempt])
    return rng, draw_plan(rng, int(rng.integers(1, MAX_CASE_SEED)), family)


def make_case(seed: int, number: int, folder: Path, family: str = "", lasting: Lasting | None = None) -> dict[str, Any]:
    """Writes the case into `folder`/NUMBER, and returns its truth. `family`: another one than the set has there;
    `lasting`: noise that the set's do not have. Raises NoCase."""
    name = family or family_of(seed, number)
    for attempt in range(ATTEMPTS):
        rng, plan = draw(seed, number, name, attempt)
        if plan and lasting:
            add_lasting(plan, lasting)
        happened = _happen(rng, plan) if plan else None
        if plan and happened:
            return _write(rng, plan, happened, folder / f"{number:04d}")
    raise NoCase(f"{number:04d}, {name}: nothing fitting in {ATTEMPTS} jobs")


def _happen(rng: np.random.Generator, plan: Plan) -> Happened | None:
    try:
        return happen(rng, plan)
    except Deadlock as error:
        print(f"discarded, as it would never end: {str(error)[:300]}", file=sys.stderr)
        return None


def _write(rng: np.random.Generator, plan: Plan, happened: Happened, folder: Path) -> dict[str, Any]:
    losses = draw_losses(rng, plan)
    excuse(plan, happened.truth, losses)
    recording = draw_recording(rng, plan, happened, losses)
    shutil.rmtree(folder, ignore_errors=True)
    lines = recording.write(folder / "recording")
    truth = _document(plan, happened, losses, folder.name, lines)
    (folder / "truth.json").write_text(json.dumps(truth, indent=1), encoding="utf-8")
    return truth


def _document(plan: Plan, happened: Happened, losses: Losses, name: str, lines: int) -> dict[str, Any]:
    """The truth in the form of laggard-bench's."""
    truth = happened.truth
    layout = plan.drawn.words | {"note": plan.note, "noise": plan.job.settings.gpu_sigma}
    return {
        "schema": "laggard-bench.truth/1",
        "case": name,
        "seed": plan.seed,
        "family": plan.family,
        "ranks": plan.cluster.world,
        "nodes": plan.cluster.machines,
        "steps": plan.steps,
        "layout": layout,
        "recorded": losses.words,
        "step_seconds": round(happened.step_seconds, 5),
        "verdicts": truth.verdicts,
        "faults": truth.faults,
        "tolerated": truth.tolerated,
        "why": truth.why.strip(),
        "lines": lines,
    }
