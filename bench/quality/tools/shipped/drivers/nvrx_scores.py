"""NVRx's scores and what Report.identify_stragglers() makes of them, with the thresholds that it ships. The ranks of a
job are one process here: each has a ReportGenerator of its own, and what the ranks would tell each other, the least
median of each kernel and section, is told by this file. A report is made of each window of steps, as it is every so
many steps in a job, and a rank counts that any of them names."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from nvidia_resiliency_ext.straggler.reporting import Report, ReportGenerator
from nvidia_resiliency_ext.straggler.statistics import Statistic

SCORES = ["relative_perf_scores", "individual_perf_scores"]
Summary = dict[Statistic, float]
Times = Mapping[str, list[float | None]]


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """`windows`: of each the ranks, of each rank `kernels` and `sections`, of each the seconds of its calls.
    `scores`: relative or individual."""
    ranks = len(request["windows"][0])
    makers = [ReportGenerator(SCORES, gather_on_rank0=False) for _ in range(ranks)]
    named: dict[int, set[str]] = {}
    for window in request["windows"]:
        for rank, what in identified(makers, window, request["scores"]):
            named.setdefault(rank, set()).add(what)
    return [culprit(rank, parts) for rank, parts in sorted(named.items())]


def identified(makers: list[ReportGenerator], window: list[dict[str, Times]], scores: str) -> list[tuple[int, str]]:
    """The ranks that one window's report names, each with `gpu` or the name of its section."""
    kernels = [summaries(rank["kernels"]) for rank in window]
    sections = [summaries(rank["sections"]) for rank in window]
    least = {name: reference(name, kernels) for name in {name for one in kernels for name in one}}
    shortest = {name: reference(name, sections) for name in {name for one in sections for name in one}}
    gpu_relative: dict[int, float] = {}
    gpu_individual: dict[int, float] = {}
    by_section: dict[str, dict[int, float]] = {}
    own_best: dict[str, dict[int, float]] = {}
    for rank, (maker, mine, parts) in enumerate(zip(makers, kernels, sections, strict=True)):
        maker._update_local_min_times(mine, parts)
        gpu_relative[rank] = maker._compute_gpu_perf_score(mine, least)
        gpu_individual[rank] = maker._compute_gpu_perf_score(mine, maker.min_local_kernel_times)
        for name, score in maker._compute_sections_perf_scores(parts, shortest).items():
            by_section.setdefault(name, {})[rank] = score
        for name, score in maker._compute_sections_perf_scores(parts, maker.min_local_section_times).items():
            own_best.setdefault(name, {})[rank] = score
    report = Report(
        gpu_relative, by_section, gpu_individual, own_best, {rank: "" for rank in range(len(makers))},
        {}, {}, 0.0, True, None,
    )  # fmt: skip
    said = report.identify_stragglers()
    found = [(straggler.rank, "gpu") for straggler in said[f"straggler_gpus_{scores}"]]
    for name, stragglers in said[f"straggler_sections_{scores}"].items():
        found += [(straggler.rank, name) for straggler in stragglers]
    return found


def summaries(times: Times) -> dict[str, Summary]:
    """What NVRx keeps of a window's calls."""
    made: dict[str, Summary] = {}
    for name, each in times.items():
        seconds = [one for one in each if one is not None and one > 0]
        if seconds:
            made[name] = {
                Statistic.MED: statistics.median(seconds),
                Statistic.AVG: statistics.fmean(seconds),
                Statistic.NUM: len(seconds),
            }
    return made


def reference(name: str, of_ranks: list[dict[str, Summary]]) -> float:
    """The least median of the ranks, NaN where one of them has none: as its all_reduce tells."""
    values = [one[name][Statistic.MED] if name in one else float("nan") for one in of_ranks]
    return min(values) if all(value == value for value in values) else float("nan")


def culprit(rank: int, parts: set[str]) -> dict[str, Any]:
    if "data_loading" in parts and len(parts) == 1:
        return {"kind": "slow_input", "ranks": [rank], "phase": "input"}
    return {"kind": "slow_compute", "ranks": [rank], "phase": "forward" if "fwd" in parts else None}
