"""Recordings as the hooks leave them where steps on a GPU are short: one step in some is timed, and nothing else is
recorded of the others than that their collectives were counted."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from golden.case import Case, Made
from golden.simulated import benchmark_cases
from laggard.trainer_hooks.device.phases import is_timed

FIRST_TIMED = 4
"""The first steps, all of which have marks. In a training these are 16: recordings of the tests are short."""


EACH, PERIOD = 12, 2
"""One in so many of laggard-bench's cases, of which one step in so many is timed."""


def thinned() -> Iterator[Case]:
    for case in list(benchmark_cases())[::EACH]:
        yield Case(f"thinned/{case.name.replace('/', '_')}", partial(_make, case))


def _make(case: Case, folder: Path) -> Made:
    made = case.make(folder)
    thin(made.recording, PERIOD)
    return made


def thin(recording: Path, period: int) -> None:
    """Leaves out of a recording what one in `period` steps would not have; a run's last step stays as it is: it may be
    under way."""
    for path in sorted(recording.rglob("*.jsonl")) if recording.is_dir() else [recording]:
        lines = path.read_text().splitlines()
        last = max((it["step"] for it in map(_read, lines) if it.get("kind") == "step"), default=-1)
        path.write_text("".join(f"{line}\n" for line in _kept(lines, period, last)))


def _kept(lines: Iterable[str], period: int, last: int) -> Iterator[str]:
    for line in lines:
        told = _read(line)
        step = told.get("step")
        timed = told.get("kind") not in ("step", "span", "collective") or step is None or step > last
        if timed or step < FIRST_TIMED or is_timed(step, period):
            yield line


def _read(line: str) -> dict[str, object]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
