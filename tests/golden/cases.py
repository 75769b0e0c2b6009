"""All cases of recorded and simulated jobs."""

from __future__ import annotations

from golden.case import Case
from golden.simulated import benchmark_cases, fluid_cases, simulated


def all_cases() -> list[Case]:
    return [*simulated(), *fluid_cases(), *benchmark_cases()]
