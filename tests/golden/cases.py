"""All cases of recorded and simulated jobs."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from written_jobs import innocent, recorded, slow  # noqa: F401 - they keep their cases
from written_jobs.case import CASES, WrittenCase

from golden.case import Case, Made
from golden.other_forms import dumps, inspector_logs, of_folders, profiler_traces, stacks
from golden.real import real_runs
from golden.simulated import benchmark_cases, fluid_cases, simulated
from golden.thinned import thinned


def all_cases() -> list[Case]:
    """None is made yet. Real runs are there as far as they are packed."""
    return [
        *simulated(),
        *fluid_cases(),
        *benchmark_cases(),
        *thinned(),
        *written(),
        *real_runs(),
        *dumps(),
        *profiler_traces(),
        *inspector_logs(),
        *stacks(),
        *of_folders(),
    ]


def written() -> Iterator[Case]:
    for name, one in CASES.items():
        kind = one.make.__module__.rpartition(".")[2]
        yield Case(f"written/{kind}/{name}", partial(_write, name, one))


def _write(name: str, one: WrittenCase, folder: Path) -> Made:
    one.write(folder / name)
    return Made(folder / name, lambda timings: one.truth)
