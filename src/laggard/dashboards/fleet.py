"""The dashboard `laggard / Fleet`: which jobs are slow, which nodes are unfit, whether laggard itself can tell."""

from __future__ import annotations

from typing import Final

from laggard.dashboards.dashboard import ELSEWHERE, IN_CLUSTER, Annotation, Dashboard, Row, highest, new_culprits, said
from laggard.dashboards.panel import Panel, Query, bad_above, stat

_JOB: Final = f"/d/laggard-job?var-job_id=${{__data.fields.Job}}&var-user=${{__data.fields.User}}&{ELSEWHERE}"
_NODE: Final = f"/d/laggard-node?var-instance=${{__data.fields.Node}}&{ELSEWHERE}"
_WHICH_JOB: Final = "{{job_id}} ({{user}}) {{cluster}}"
_BAD: Final = ', severity=~"critical|warning"'


FLEET: Final = Dashboard(
    uid="laggard-fleet",
    title="laggard / Fleet",
    description="All jobs and nodes: what is slow, what is unfit, and why.",
    annotations=(
        Annotation(
            "Incidents",
            new_culprits(),
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
                    f"count({said('laggard_job_running')} == 1) or vector(0)",
                    "jobs",
                    "Jobs of which a process runs.",
                ),
                stat(
                    "Jobs with a culprit",
                    f"count(count by (cluster, job_id, user) (laggard_culprit{{{IN_CLUSTER}}})) or vector(0)",
                    "jobs",
                    "Jobs in which a rank, host or link keeps others waiting, hangs or died.",
                    thresholds=bad_above(1),
                ),
                stat(
                    "Nodes with a critical finding",
                    f'count(count by (cluster, instance) (laggard_finding{{{IN_CLUSTER}, severity="critical"}})) '
                    "or vector(0)",
                    "nodes",
                    "Nodes that must not get a job.",
                    thresholds=bad_above(1),
                ),
                stat(
                    "Nodes of which something is unknown",
                    f'count(count by (cluster, instance) (laggard_probe_verdict{{{IN_CLUSTER}, verdict="unknown"}})) '
                    "or vector(0)",
                    "nodes",
                    "A check cannot tell. Unknown is never ok.",
                    thresholds=bad_above(1),
                ),
                stat(
                    "Agents that do not answer",
                    f"count({said('laggard_target_up')} == 0) or vector(0)",
                    "agents",
                    "Of those that the collector asks; of two collectors, those that neither reaches.",
                    thresholds=bad_above(1),
                ),
                stat(
                    "Failing nodes, of the drain cap",
                    f"max({said('laggard_fleet_failing_nodes')} / ({said('laggard_fleet_drain_cap_nodes')} > 0))",
                    "failing / cap",
                    "From 100 % on the gate drains no further node: look for one cause. Of clusters, the worst.",
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
                    (Query(f"sort_desc({said('laggard_culprit')})", instant=True),),
                    "Who keeps others waiting, and which share of the step time fixing it would save.",
                    unit="percentunit",
                    columns=(
                        ("job_id", "Job"),
                        ("user", "User"),
                        ("kind", "Kind"),
                        ("rank", "Rank"),
                        ("hostname", "Host"),
                        ("Value", "Would save"),
                        ("cluster", "Cluster"),
                    ),
                    links=(("Job", "The job", _JOB),),
                    thresholds=bad_above(0.05, 0.2),
                ),
                Panel(
                    "Slowdown by job",
                    "timeseries",
                    (Query(said("laggard_job_slowdown_ratio"), _WHICH_JOB),),
                    "Step time over the step time without culprits. 1: nobody keeps the job waiting.",
                ),
                Panel(
                    "What the median rank waits",
                    "timeseries",
                    (Query(f"job_id_user:laggard_rank_waiting:ratio5m{{{IN_CLUSTER}}}", _WHICH_JOB),),
                    "Share of a step in collectives and for input: what there is to win.",
                    unit="percentunit",
                ),
                Panel(
                    "Step time",
                    "timeseries",
                    (Query(f"job_id_user:laggard_rank_step_seconds:median5m{{{IN_CLUSTER}}}", _WHICH_JOB),),
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
                    (Query(f"{said('laggard_job_incidents_open')} > 0", _WHICH_JOB),),
                    "By job. `laggard incidents` has when each began, and its evidence.",
                ),
                Panel(
                    "Incidents opened",
                    "timeseries",
                    (
                        Query(
                            "sum by (kind) (max by (cluster, kind) "
                            f"(increase(laggard_incidents_opened_total{{{IN_CLUSTER}}}[$__rate_interval])))",
                            "{{kind}}",
                        ),
                    ),
                    "By kind of culprit, since one point of the graph before.",
                    stacked=True,
                ),
                Panel(
                    "What to change",
                    "table",
                    (Query(f"sort_desc(topk(20, {said('laggard_job_recommendation_gain_ratio')}))", instant=True),),
                    "The changes that promise most, of all jobs; `laggard recommend` has how, and the risk.",
                    width=24,
                    columns=(
                        ("job_id", "Job"),
                        ("user", "User"),
                        ("target", "Where"),
                        ("key", "What"),
                        ("basis", "Basis"),
                        ("Value", "Throughput, times"),
                        ("cluster", "Cluster"),
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
                    (Query(f"sort(laggard_finding{{{IN_CLUSTER}{_BAD}}})", instant=True),),
                    "What is wrong on which node; `laggard findings explain CODE` says what to do.",
                    columns=(
                        ("instance", "Node"),
                        ("severity", "Severity"),
                        ("code", "Code"),
                        ("device", "Device"),
                        ("cluster", "Cluster"),
                    ),
                    links=(("Node", "The node", _NODE),),
                ),
                Panel(
                    "Nodes by finding",
                    "timeseries",
                    (
                        Query(
                            "count by (code, severity) (count by (code, severity, cluster, instance) "
                            f"(laggard_finding{{{IN_CLUSTER}{_BAD}}}))",
                            "{{code}} ({{severity}})",
                        ),
                    ),
                    "How many nodes have it.",
                    stacked=True,
                ),
                Panel(
                    "Nodes that differ from the others",
                    "table",
                    (Query(f"sort({said('laggard_fleet_finding')})", instant=True),),
                    "Versions, settings and numbers of devices that most other nodes have otherwise.",
                    columns=(
                        ("hostname", "Host"),
                        ("severity", "Severity"),
                        ("code", "Code"),
                        ("device", "Device"),
                        ("cluster", "Cluster"),
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
                    (Query(f"laggard_collector_round_seconds{{{IN_CLUSTER}}}", "{{instance}} {{cluster}}"),),
                    "All agents asked and all jobs judged.",
                    unit="s",
                ),
                Panel(
                    "Evaluators",
                    "timeseries",
                    (
                        Query(f"min by (cluster) (laggard_evaluators_live{{{IN_CLUSTER}}})", "alive {{cluster}}"),
                        Query(f"laggard_evaluator_jobs{{{IN_CLUSTER}}}", "jobs of {{instance}} {{cluster}}"),
                    ),
                    "Those that share the jobs of a Prometheus, by the one that sees the fewest (0: no database), "
                    "and the jobs that each judges, 512 at most.",
                ),
                Panel(
                    "Longest rounds of probes",
                    "timeseries",
                    (
                        Query(
                            highest(10, f"laggard_agent_probe_round_seconds{{{IN_CLUSTER}}}"),
                            "{{instance}} {{cluster}}",
                        ),
                    ),
                    "The ten agents whose checks take longest, all of them together.",
                    unit="s",
                ),
                Panel(
                    "Memory",
                    "timeseries",
                    (
                        Query(
                            f'max by (job) (process_resident_memory_bytes{{{IN_CLUSTER}, job=~"laggard-.+"}})',
                            "{{job}}",
                        ),
                    ),
                    "Of the largest agent, collector and controller. The collector's grows with the ranks.",
                    unit="bytes",
                ),
                Panel(
                    "Connections turned away",
                    "timeseries",
                    (
                        Query(
                            "topk(10, sum by (cluster, job, instance) "
                            f"(increase(laggard_connections_turned_away_total{{{IN_CLUSTER}}}[$__rate_interval])) > 0)",
                            "{{job}} {{instance}} {{cluster}}",
                        ),
                    ),
                    "Clients that opened more connections at once than a daemon takes. No data: none was.",
                ),
            ),
        ),
        Row(
            "What incidents took, and what fails again and again",
            (
                Panel(
                    "GPU-hours lost a day",
                    "timeseries",
                    (Query(f"kind:laggard_lost_gpu_hours:increase1d{{{IN_CLUSTER}}}", "{{kind}} {{cluster}}"),),
                    "By kind of culprit, in the 24 hours before, while they were watched. A rank's hour is one.",
                    stacked=True,
                ),
                Panel(
                    "Failures in 30 days",
                    "table",
                    (Query(f"sort_desc({said('laggard_node_failures')})", instant=True),),
                    "Times in which a machine had a critical finding: three, or one within a week of a repair.",
                    columns=(("hostname", "Machine"), ("Value", "Failures"), ("cluster", "Cluster")),
                    thresholds=bad_above(3, 5),
                ),
                Panel(
                    "Came back",
                    "table",
                    (Query(f"sort_desc({said('laggard_node_fault_returned')})", instant=True),),
                    "Open findings that had been over less than a week before, and how often.",
                    columns=(
                        ("hostname", "Machine"),
                        ("code", "Finding"),
                        ("device", "Device"),
                        ("Value", "Times"),
                        ("cluster", "Cluster"),
                    ),
                ),
            ),
        ),
    ),
)
