"""The dashboard `laggard / Node`: what the checks say of one node, and which ranks run there."""

from __future__ import annotations

from typing import Final

from laggard.dashboards.dashboard import ELSEWHERE, IN_CLUSTER, Annotation, Dashboard, Row, Variable, new_culprits, said
from laggard.dashboards.panel import Panel, Query, bad_above, stat

_OF_NODE: Final = f'{IN_CLUSTER}, instance="$instance"'
_VALUES: Final = (("ok", 1), ("skipped", 2), ("unknown", 3), ("fail", 4))
_COLOURS: Final = {"ok": "green", "skipped": "#808080", "unknown": "orange", "fail": "red"}
_EACH: Final = " or ".join(
    f'{value} * laggard_probe_verdict{{{_OF_NODE}, verdict="{verdict}"}}' for verdict, value in _VALUES
)
_VERDICT: Final = f"max by (instance, probe) ({_EACH})"
"""Each verdict of a probe is a series of its own: without `max by` a probe would have a row for each that it had."""

_HERE: Final = f"on (cluster, hostname) laggard_rank_info{{{_OF_NODE}}}"

NODE: Final = Dashboard(
    uid="laggard-node",
    title="laggard / Node",
    description="One node: its checks, its findings, its ranks.",
    variables=(Variable("instance", "Node", f"label_values(laggard_probe_verdict{{{IN_CLUSTER}}}, instance)"),),
    annotations=(
        Annotation(
            "Incidents",
            new_culprits(where=f"and {_HERE}"),
            "{{kind}}: rank {{rank}} of job {{job_id}}",
            "red",
        ),
    ),
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Checks that fail or cannot tell",
                    f'count(laggard_probe_verdict{{{_OF_NODE}, verdict=~"fail|unknown"}}) or vector(0)',
                    "checks",
                    "Unknown is never ok.",
                    width=4,
                    height=7,
                    thresholds=bad_above(1),
                ),
                stat(
                    "Last check",
                    f"time() - max(laggard_probe_last_run_timestamp_seconds{{{_OF_NODE}}})",
                    "ago",
                    "What is below is as old as this.",
                    unit="s",
                    width=4,
                    height=7,
                    thresholds=bad_above(300, 900),
                ),
                Panel(
                    "Findings",
                    "table",
                    (Query(f"sort(laggard_finding{{{_OF_NODE}}})", instant=True),),
                    "`laggard findings explain CODE` says what to do.",
                    width=16,
                    height=7,
                    columns=(("severity", "Severity"), ("code", "Code"), ("device", "Device")),
                ),
            ),
        ),
        Row(
            "Checks",
            (
                Panel(
                    "Verdicts",
                    "state-timeline",
                    (Query(_VERDICT, "{{probe}}"),),
                    "Each check over time. A gap: it did not run.",
                    width=24,
                    height=20,
                    states=tuple((str(value), verdict, _COLOURS[verdict]) for verdict, value in _VALUES),
                ),
                Panel(
                    "Slowest checks",
                    "timeseries",
                    (Query(f"topk(10, laggard_probe_duration_seconds{{{_OF_NODE}}})", "{{probe}}"),),
                    "How long the last run took.",
                    unit="s",
                ),
                Panel(
                    "Rank files that are ignored",
                    "timeseries",
                    (Query(f"laggard_rank_files_ignored{{{_OF_NODE}}}", "{{reason}}"),),
                    "Ranks that are not watched.",
                ),
            ),
        ),
        Row(
            "Ranks",
            (
                Panel(
                    "Ranks here",
                    "table",
                    (Query(f"sort(laggard_rank_info{{{_OF_NODE}}})", instant=True),),
                    "The ranks of this node's rank files.",
                    columns=(
                        ("job_id", "Job"),
                        ("user", "User"),
                        ("rank", "Rank"),
                        ("local_rank", "Local rank"),
                        ("gpu", "GPU"),
                    ),
                    links=(
                        (
                            "Job",
                            "The job",
                            f"/d/laggard-job?var-job_id=${{__data.fields.Job}}&var-user=${{__data.fields.User}}&{ELSEWHERE}",
                        ),
                    ),
                ),
                Panel(
                    "Busy time",
                    "timeseries",
                    (
                        Query(
                            f"rank:laggard_rank_own_seconds:mean5m{{{_OF_NODE}}}",
                            "{{job_id}} rank {{rank}}",
                        ),
                    ),
                    "Seconds of a step in which the rank does not wait.",
                    unit="s",
                ),
                Panel(
                    "Culprits here",
                    "timeseries",
                    (Query(f"{said('laggard_culprit')} and {_HERE}", "{{kind}}: rank {{rank}} of {{job_id}}"),),
                    "Ranks of this node that keep others waiting, and which share of the step time that takes.",
                    unit="percentunit",
                ),
                Panel(
                    "Open incidents of its jobs",
                    "timeseries",
                    (
                        Query(
                            f"{said('laggard_job_incidents_open')}"
                            f" and on (cluster, job_id, user) laggard_rank_info{{{_OF_NODE}}}",
                            "{{job_id}} ({{user}})",
                        ),
                    ),
                    "Of the jobs that have ranks here, on whichever node.",
                ),
            ),
        ),
        Row(
            "The agent",
            (
                Panel(
                    "A round of probes",
                    "timeseries",
                    (Query(f"laggard_agent_probe_round_seconds{{{_OF_NODE}}}", "{{instance}}"),),
                    "All checks together.",
                    unit="s",
                ),
                Panel(
                    "Memory",
                    "timeseries",
                    (
                        Query(
                            f'process_resident_memory_bytes{{{_OF_NODE}, job="laggard-agent"}}',
                            "{{instance}}",
                        ),
                    ),
                    "Of the agent; its prober is a process of its own.",
                    unit="bytes",
                ),
            ),
        ),
    ),
)
