"""All metrics by name: the one place that defines them. Exposition, documentation and tests are made from it."""

from __future__ import annotations

from laggard.catalogue.rank_metrics import BUILD_INFO, JOB, RANK_METRICS, Metric

PROCESS_METRICS = (
    Metric("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    Metric("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."),
    Metric("process_open_fds", "gauge", "Number of open file descriptors."),
)
"""The metrics of a daemon itself, under the names that every Prometheus client gives them. The agent's prober is a
process of its own, and not in them."""

METRICS: tuple[Metric, ...] = (
    BUILD_INFO,
    Metric(
        "laggard_probe_verdict",
        "gauge",
        "The verdict of the probe's last run (cached); always 1.",
        ("probe", "verdict"),
    ),
    Metric("laggard_probe_duration_seconds", "gauge", "How long the probe's last run took (cached).", ("probe",)),
    Metric("laggard_probe_last_run_timestamp_seconds", "gauge", "When the probe last ran, Unix time.", ("probe",)),
    Metric(
        "laggard_finding",
        "gauge",
        "A finding of the last probe run (cached); always 1.",
        ("code", "severity", "device"),
    ),
    Metric(
        "laggard_finding_info",
        "gauge",
        "What a critical finding says, as it was found first, and what ends it; always 1.",
        ("code", "device", "action", "summary"),
    ),
    Metric(
        "laggard_idle_rings_total",
        "counter",
        "Rings on the idle node since it started, by outcome: ok, fail, unknown, job_came (ended for it), stopped.",
        ("outcome",),
    ),
    Metric("laggard_idle_ring_last_end_timestamp_seconds", "gauge", "When the last ring on the idle node ended."),
    Metric(
        "laggard_idle_ring_abort_seconds",
        "gauge",
        "How long the last ring took to end that ended for a job, from when the job was seen.",
    ),
    Metric(
        "laggard_agent_probe_round_seconds",
        "gauge",
        "How long the last complete round of probes took, all of them together.",
    ),
    Metric("laggard_rank_files_ignored", "gauge", "Rank files that were rejected, by reason.", ("reason",)),
    *RANK_METRICS,
    Metric("laggard_target_up", "gauge", "1 where the agent answered the collector's last scrape.", ("target",)),
    Metric(
        "laggard_node_labels",
        "gauge",
        "A node's place in its site, to be joined; `agent` is its agent's HOST:PORT; 0: no label is known, else 1.",
        ("hostname", "agent", "partition", "rack", "team"),
    ),
    Metric(
        "laggard_node_out",
        "gauge",
        "Since when the scheduler gives the node no job, Unix time, 0: not known; `by`: laggard, slurm, kubernetes, "
        "administrator. Absent while it gets jobs.",
        ("hostname", "by", "reason"),
    ),
    Metric(
        "laggard_culprit",
        "gauge",
        "Share of the step time that fixing this culprit would save.",
        (*JOB, "rank", "kind", "hostname"),
    ),
    Metric(
        "laggard_culprit_place",
        "gauge",
        "Always 1: where in the code the first rank of this culprit stands, as far as its process told.",
        (*JOB, "rank", "kind", "hostname", "place"),
    ),
    Metric("laggard_job_running", "gauge", "1 while a process of the job runs; 0 once it has ended.", JOB),
    Metric(
        "laggard_job_slowdown_ratio",
        "gauge",
        "Step time over the step time without culprits; 1: none. Absent where it is not known.",
        JOB,
    ),
    Metric(
        "laggard_job_first_hour_ratio",
        "gauge",
        "Step time over that of the job's own first hour, after the warm-up. Absent where that is not known.",
        JOB,
    ),
    Metric("laggard_job_ranks", "gauge", "Ranks of the job that agents report.", JOB),
    Metric(
        "laggard_collector_external_url",
        "gauge",
        "The URL at which people reach the collector (external_url); always 1. Alerts take the address of their runbook"
        " from it.",
        ("url",),
    ),
    Metric(
        "laggard_collector_jobs_not_held", "gauge", "Jobs that agents report and the collector has no room to watch."
    ),
    Metric(
        "laggard_collector_ranks_not_held", "gauge", "Ranks that agents report and the collector has no room to watch."
    ),
    Metric(
        "laggard_collector_round_seconds",
        "gauge",
        "How long the last round took: all agents asked, all jobs judged. Beyond interval_seconds rounds come late.",
    ),
    Metric(
        "laggard_job_recommendation",
        "gauge",
        "A change that is recommended for the running job; always 1. `basis`: what is known of its gain.",
        (*JOB, "target", "key", "basis"),
    ),
    Metric(
        "laggard_job_recommendation_gain_ratio",
        "gauge",
        "Throughput with that change over the present one. Absent where it is not known.",
        (*JOB, "target", "key", "basis"),
    ),
    Metric("laggard_job_incidents_open", "gauge", "Incidents of the job that are open.", JOB),
    Metric(
        "laggard_job_incidents_returned",
        "gauge",
        "Open incidents of the job at machines where the same was over less than a week before; absent without any.",
        JOB,
    ),
    Metric(
        "laggard_lost_gpu_seconds_total",
        "counter",
        "GPU-seconds that culprits took while they were watched, by kind, since the collector started.",
        ("kind",),
    ),
    Metric(
        "laggard_node_fault_returned",
        "gauge",
        "How often an open finding of the node was over within the week before. 256 at most.",
        ("hostname", "code", "device"),
    ),
    Metric(
        "laggard_node_failures",
        "gauge",
        "Failures in 30 days of a node that fails again and again: 3 of them, or one within a week. 100 nodes at most.",
        ("hostname",),
    ),
    Metric(
        "laggard_node_between_failures_seconds",
        "gauge",
        "Mean time between failures of such a node, in 30 days.",
        ("hostname",),
    ),
    Metric("laggard_node_repair_seconds", "gauge", "Mean time until a failure of such a node was over.", ("hostname",)),
    Metric("laggard_controller_last_round_timestamp_seconds", "gauge", "When a round was last completed, Unix time."),
    Metric("laggard_controller_round_seconds", "gauge", "How long the last completed round took."),
    Metric("laggard_controller_unhealthy_nodes", "gauge", "Nodes of Kubernetes whose agent has a critical finding."),
    Metric("laggard_controller_tainted_nodes", "gauge", "Nodes of Kubernetes that have laggard's taint."),
    Metric("laggard_controller_held_back", "gauge", "1 while the circuit breaker keeps nodes that fail untainted."),
    Metric(
        "laggard_controller_misnamed_agents",
        "gauge",
        "Agents at the address of a node of Kubernetes that report a name which no node has.",
    ),
    Metric(
        "laggard_job_incident",
        "gauge",
        "An incident, `what` in words, as it was named first: 1 while it is open, 0 for five minutes after that; "
        "`rank`: of one rank alone, else empty.",
        (*JOB, "rank", "kind", "hostname", "what"),
    ),
    Metric("laggard_incidents_opened_total", "counter", "Incidents opened since the collector started.", ("kind",)),
    Metric("laggard_incidents_closed_total", "counter", "Incidents closed since the collector started.", ("kind",)),
    Metric(
        "laggard_incidents_refused_total", "counter", "Culprits without an incident, since too many were open already."
    ),
    Metric(
        "laggard_evaluators_live",
        "gauge",
        "Evaluators among whom the jobs of a Prometheus are shared; 0 while their database does not answer; absent from"
        " a collector that judges all by itself.",
    ),
    Metric("laggard_evaluator_jobs", "gauge", "Jobs that are this evaluator's to judge."),
    Metric(
        "laggard_incidents_history_up",
        "gauge",
        "1 while incidents are kept in their database, 0 while it fails; absent where the collector has none.",
    ),
    Metric("laggard_incidents_database_bytes", "gauge", "Size of the database of incidents."),
    Metric(
        "laggard_connections_turned_away_total",
        "counter",
        "Connections that the daemon closed or refused since too many were open.",
    ),
    Metric(
        "laggard_collector_connections_ended_total",
        "counter",
        "Those of the collector, by why: no whole request had come (no_request), the client did not take its answer "
        "(not_taken), all places were taken (refused).",
        ("reason",),
    ),
    *PROCESS_METRICS,
    Metric(
        "laggard_fleet_finding",
        "gauge",
        "A finding of the collector's own about a node, from comparing it with the others; always 1.",
        ("code", "severity", "device", "hostname"),
    ),
    Metric(
        "laggard_fleet_wide_finding_nodes",
        "gauge",
        "Nodes with a finding that many have at once: it has one cause, and drains nobody.",
        ("code",),
    ),
    Metric("laggard_fleet_failing_nodes", "gauge", "Nodes whose checks fail now."),
    Metric(
        "laggard_fleet_excluded_nodes",
        "gauge",
        "Nodes that the next job is to leave out (laggard exclude), before the cap, by why: confirmed by a "
        "measurement, a critical finding, or a job's culprit.",
        ("basis",),
    ),
    Metric("laggard_fleet_drain_cap_nodes", "gauge", "How many failing nodes may be drained at once."),
)


_METRICS_BY_NAME = {metric.name: metric for metric in METRICS}


def metric(name: str) -> Metric:
    return _METRICS_BY_NAME[name]
