"""The dashboard `laggard / Fleet`: which jobs are slow, which nodes are unfit, whether laggard itself can tell."""

from __future__ import annotations

from typing import Final

from laggard.dashboards.dashboard import Annotation, Dashboard, Row
from laggard.dashboards.panel import Panel, Query, bad_above, stat

_JOB: Final = "/d/laggard-job?var-job_id=${__data.fields.Job}&var-user=${__data.fields.User}&${__url_time_range}"
_NODE: Final = "/d/laggard-node?var-instance=${__data.fields.Node}&${__url_time_range}"

FLEET: Final = Dashboard(
    uid="laggard-fleet",
    title="laggard / Fleet",
    description="All jobs and nodes: what is slow, what is unfit, and why.",
    annotations=(
        Annotation(
            "Incidents",
            "laggard_culprit unless laggard_culprit offset 1m",
            "{{kind}}: rank {{rank}} of job {{job_id}} on {{hostname}}",
            "red",
        ),
    ),
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Jobs that run",
                    "sum(laggard_job_running) or vector(0)",
                    "jobs",
                    "Jobs of which a process runs.",
                ),
                stat(
                    "Jobs with a culprit",
                    "count(count by (job_id, user) (laggard_culprit)) or vector(0)",
                    "jobs",
                    "Jobs in which a rank, host or link keeps others waiting, hangs or died.",
                    thresholds=bad_above(1),
                ),
                stat(
                    "Nodes with a critical finding",
                    'count(count by (instance) (laggard_finding{severity="critical"})) or vector(0)',
                    "nodes",
                    "Nodes that must not get a job.",
                    thresholds=bad_above(1),
                ),
                stat(
                    "Nodes of which something is unknown",
                    'count(count by (instance) (laggard_probe_verdict{verdict="unknown"})) or vector(0)',
                    "nodes",
                    "A check cannot tell. Unknown is never ok.",
                    thresholds=bad_above(1),
                ),
                stat(
                    "Agents that do not answer",
                    "count(laggard_target_up == 0) or vector(0)",
                    "agents",
                    "Of those that the collector asks.",
                    thresholds=bad_above(1),
                ),
                stat(
                    "Failing nodes, of the drain cap",
                    "laggard_fleet_failing_nodes / (laggard_fleet_drain_cap_nodes > 0)",
                    "failing / cap",
                    "From 100 % on the gate drains no further node: look for one cause.",
                    unit="percentunit",
                    thresholds=bad_above(0.5, 1),
                ),
            ),
        ),
        Row(
            "Jobs",
            (
                Panel(
                    "Culprits",
                    "table",
                    (Query("sort_desc(laggard_culprit)", instant=True),),
                    "Who keeps others waiting, and which share of the step time fixing it would save.",
                    unit="percentunit",
                    columns=(
                        ("job_id", "Job"),
                        ("user", "User"),
                        ("kind", "Kind"),
                        ("rank", "Rank"),
                        ("hostname", "Host"),
                        ("Value", "Would save"),
                    ),
                    links=(("Job", "The job", _JOB),),
                    thresholds=bad_above(0.05, 0.2),
                ),
                Panel(
                    "Slowdown by job",
                    "timeseries",
                    (Query("laggard_job_slowdown_ratio", "{{job_id}} ({{user}})"),),
                    "Step time over the step time without culprits. 1: nobody keeps the job waiting.",
                ),
                Panel(
                    "What the median rank waits",
                    "timeseries",
                    (Query("job_id_user:laggard_rank_waiting:ratio5m", "{{job_id}} ({{user}})"),),
                    "Share of a step in collectives and for input: what there is to win.",
                    unit="percentunit",
                ),
                Panel(
                    "Step time",
                    "timeseries",
                    (Query("job_id_user:laggard_rank_step_seconds:median5m", "{{job_id}} ({{user}})"),),
                    "Of the median rank, mean over five minutes.",
                    unit="s",
                ),
            ),
        ),
        Row(
            "Incidents",
            (
                Panel(
                    "Open incidents",
                    "timeseries",
                    (Query("laggard_job_incidents_open > 0", "{{job_id}} ({{user}})"),),
                    "By job. `laggard incidents` has when each began, and its evidence.",
                ),
                Panel(
                    "Incidents opened",
                    "timeseries",
                    (
                        Query(
                            "sum by (kind) (increase(laggard_incidents_opened_total[$__rate_interval]))",
                            "{{kind}}",
                        ),
                    ),
                    "By kind of culprit, since one point of the graph before.",
                    stacked=True,
                ),
                Panel(
                    "What to change",
                    "table",
                    (Query("sort_desc(topk(20, laggard_job_recommendation_gain_ratio))", instant=True),),
                    "The changes that promise most, of all jobs; `laggard recommend` has how, and the risk.",
                    width=24,
                    columns=(
                        ("job_id", "Job"),
                        ("user", "User"),
                        ("target", "Where"),
                        ("key", "What"),
                        ("basis", "Basis"),
                        ("Value", "Throughput, times"),
                    ),
                    links=(("Job", "The job", _JOB),),
                ),
            ),
        ),
        Row(
            "Nodes",
            (
                Panel(
                    "Findings",
                    "table",
                    (Query('sort(laggard_finding{severity=~"critical|warning"})', instant=True),),
                    "What is wrong on which node; `laggard findings explain CODE` says what to do.",
                    columns=(
                        ("instance", "Node"),
                        ("severity", "Severity"),
                        ("code", "Code"),
                        ("device", "Device"),
                    ),
                    links=(("Node", "The node", _NODE),),
                ),
                Panel(
                    "Nodes by finding",
                    "timeseries",
                    (
                        Query(
                            "count by (code, severity) (count by (code, severity, instance) "
                            '(laggard_finding{severity=~"critical|warning"}))',
                            "{{code}} ({{severity}})",
                        ),
                    ),
                    "How many nodes have it.",
                    stacked=True,
                ),
                Panel(
                    "Nodes that differ from the others",
                    "table",
                    (Query("sort(laggard_fleet_finding)", instant=True),),
                    "Versions, settings and numbers of devices that most other nodes have otherwise.",
                    columns=(
                        ("hostname", "Host"),
                        ("severity", "Severity"),
                        ("code", "Code"),
                        ("device", "Device"),
                    ),
                ),
            ),
        ),
        Row(
            "laggard itself",
            (
                Panel(
                    "A round of the collector",
                    "timeseries",
                    (Query("laggard_collector_round_seconds", "{{instance}}"),),
                    "All agents asked and all jobs judged.",
                    unit="s",
                ),
                Panel(
                    "Longest rounds of probes",
                    "timeseries",
                    (Query("topk(10, laggard_agent_probe_round_seconds)", "{{instance}}"),),
                    "The ten agents whose checks take longest, all of them together.",
                    unit="s",
                ),
                Panel(
                    "Memory",
                    "timeseries",
                    (Query('max by (job) (process_resident_memory_bytes{job=~"laggard-.+"})', "{{job}}"),),
                    "Of the largest agent, collector and controller. The collector's grows with the ranks.",
                    unit="bytes",
                ),
                Panel(
                    "Connections turned away",
                    "timeseries",
                    (
                        Query(
                            "topk(10, sum by (job, instance) "
                            "(increase(laggard_connections_turned_away_total[$__rate_interval])))",
                            "{{job}} {{instance}}",
                        ),
                    ),
                    "Clients that opened more connections at once than a daemon takes.",
                ),
            ),
        ),
    ),
)
