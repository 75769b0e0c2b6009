"""The dashboard `laggard / Job`: one job's ranks, who is slow, in what, since when."""

from __future__ import annotations

from typing import Final

from laggard.dashboards.dashboard import IN_CLUSTER, Annotation, Dashboard, Row, Variable, highest, new_culprits, said
from laggard.dashboards.panel import Panel, Query, bad_above, stat

_OF_JOB: Final = f'{IN_CLUSTER}, job_id="$job_id", user="$user"'
_MEDIAN: Final = f"job_id_user:laggard_rank_own_seconds:median5m{{{_OF_JOB}}}"
_OWN: Final = f"rank:laggard_rank_own_seconds:mean5m{{{_OF_JOB}}}"
_ROWS: Final = 256
"""The rows of the heat map, each a pixel or two. All ranks of the largest jobs would be 15 MB an hour, asked anew each
half minute."""

_BUSY: Final = f"max by (rank) (({highest(_ROWS, _OWN)}) / on (cluster, job_id, user) group_left {_MEDIAN})"
"""One row a rank, also where the job went on elsewhere: on each node the rank is a series of its own."""

JOB: Final = Dashboard(
    uid="laggard-job",
    title="laggard / Job",
    description="One job: who is slow, in what, since when.",
    variables=(
        Variable("job_id", "Job", f"label_values(laggard_rank_info{{{IN_CLUSTER}}}, job_id)"),
        Variable("user", "User", f'label_values(laggard_rank_info{{{IN_CLUSTER}, job_id="$job_id"}}, user)'),
    ),
    annotations=(
        Annotation(
            "Incidents",
            new_culprits(_OF_JOB),
            "{{kind}}: rank {{rank}} on {{hostname}}",
            "red",
        ),
    ),
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Slowdown",
                    f"max(laggard_job_slowdown_ratio{{{_OF_JOB}}})",
                    "slowdown",
                    "Step time over the step time without culprits. No data: it cannot be told.",
                    width=4,
                    height=5,
                    thresholds=bad_above(1.03, 1.1),
                ),
                stat(
                    "Ranks that run",
                    f"sum(max by (cluster, rank) (laggard_rank_up{{{_OF_JOB}}}))",
                    "ranks",
                    "Ranks whose process lives.",
                    width=4,
                    height=5,
                ),
                Panel(
                    "Culprits",
                    "table",
                    (Query(f"sort_desc({said('laggard_culprit', _OF_JOB)})", instant=True),),
                    "Who keeps the others waiting, and which share of the step time fixing it would save. "
                    "`laggard locate` has the evidence and what to do.",
                    unit="percentunit",
                    width=16,
                    height=5,
                    columns=(("kind", "Kind"), ("rank", "Rank"), ("hostname", "Host"), ("Value", "Would save")),
                    thresholds=bad_above(0.05, 0.2),
                ),
            ),
        ),
        Row(
            "What to do",
            (
                Panel(
                    "What to change",
                    "table",
                    (
                        Query(
                            f"sort_desc({said('laggard_job_recommendation_gain_ratio', _OF_JOB)}"
                            f" or {said('laggard_job_recommendation', _OF_JOB)})",
                            instant=True,
                        ),
                    ),
                    "Throughput with the change over the present one; 1: not known before it is measured. "
                    "`laggard recommend` has how, and the risk.",
                    width=16,
                    columns=(
                        ("target", "Where"),
                        ("key", "What"),
                        ("basis", "Basis"),
                        ("Value", "Throughput, times"),
                    ),
                ),
                Panel(
                    "Open incidents",
                    "timeseries",
                    (Query(said("laggard_job_incidents_open", _OF_JOB), "open"),),
                    "Culprits that are named, or were a short while ago.",
                    width=8,
                ),
            ),
        ),
        Row(
            "Ranks",
            (
                Panel(
                    "Busy time by rank, against the median rank",
                    "heatmap",
                    (Query(_BUSY, "{{rank}}"),),
                    f"A row for each rank, or for the {_ROWS} busiest: 1 is as busy as the median. The slow rank is "
                    "busier, while the others wait.",
                    width=24,
                    height=12,
                ),
                Panel(
                    "Busiest ranks",
                    "timeseries",
                    (Query(highest(10, _OWN), "rank {{rank}}"),),
                    "Seconds of a step in which the rank does not wait.",
                    unit="s",
                ),
                Panel(
                    "Step time",
                    "timeseries",
                    (
                        Query(f"job_id_user:laggard_rank_step_seconds:median5m{{{_OF_JOB}}}", "step"),
                        Query(_MEDIAN, "busy, median rank"),
                    ),
                    "The median rank's step, and how much of it the rank does not wait.",
                    unit="s",
                ),
                Panel(
                    "Waiting for input",
                    "timeseries",
                    (Query(highest(10, f"rank:laggard_rank_input_seconds:mean5m{{{_OF_JOB}}}"), "rank {{rank}}"),),
                    "Seconds a step; the ten ranks that wait most.",
                    unit="s",
                ),
                Panel(
                    "In one collective for",
                    "timeseries",
                    (Query(highest(10, f"laggard_rank_in_flight_seconds{{{_OF_JOB}}}", " > 1"), "rank {{rank}}"),),
                    "The ten that waited longest, while it is more than a second. `laggard locate` says for whom they "
                    "wait: in a small job the one that is missing here.",
                    unit="s",
                ),
            ),
        ),
        Row(
            "Where the time goes",
            (
                Panel(
                    "Phases, mean over ranks",
                    "timeseries",
                    (Query(f"job_id_user_phase:laggard_rank_phase_seconds:mean5m{{{_OF_JOB}}}", "{{phase}}"),),
                    "Own seconds a step by phase, collectives taken out.",
                    unit="s",
                    stacked=True,
                ),
                Panel(
                    "Waiting in collectives, mean over ranks",
                    "timeseries",
                    (
                        Query(
                            f"job_id_user_op_group:laggard_rank_collective_seconds:mean5m{{{_OF_JOB}}}",
                            "{{op}} {{group}}",
                        ),
                    ),
                    "Seconds a step for which the caller is blocked, by operation and role of the group.",
                    unit="s",
                    stacked=True,
                ),
                Panel(
                    "Bytes in collectives, a rank",
                    "timeseries",
                    (
                        Query(
                            f"job_id_user_op_group:laggard_rank_collective_bytes:rate5m{{{_OF_JOB}}}",
                            "{{op}} {{group}}",
                        ),
                    ),
                    "As nccl-tests counts size.",
                    unit="binBps",
                ),
                Panel(
                    "Who is where",
                    "table",
                    (Query(f"sort(laggard_rank_info{{{_OF_JOB}}})", instant=True),),
                    "The ranks, their hosts and GPUs.",
                    columns=(("rank", "Rank"), ("hostname", "Host"), ("local_rank", "Local rank"), ("gpu", "GPU")),
                ),
            ),
        ),
    ),
)
