"""The dashboard `laggard / Cost`: what slow, hung and dead ranks cost, and which machines fail again and again."""

from __future__ import annotations

from typing import Final

from laggard.dashboards.dashboard import IN_CLUSTER, Dashboard, Row, said
from laggard.dashboards.panel import Panel, Query, bad_above, stat

_BY_KIND: Final = f"kind:laggard_lost_gpu_hours:increase1d{{{IN_CLUSTER}}}"


def _week(bound: str) -> str:
    return said("laggard_week_lost_gpu_hours", f'{IN_CLUSTER}, bound="{bound}"')


COST: Final = Dashboard(
    uid="laggard-cost",
    title="laggard / Cost",
    description="GPU-hours that incidents took, jobs' ETTR and goodput, and machines that fail again and again.",
    rows=(
        Row(
            "The last seven days",
            (
                stat(
                    "GPU-hours lost",
                    f"sum({_week('likely')})",
                    "GPU-hours",
                    "What incidents took, likely. No hour is counted twice.",
                ),
                stat("At least", f"sum({_week('least')})", "GPU-hours", "In 19 of 20 cases it was more than that."),
                stat("At most", f"sum({_week('most')})", "GPU-hours", "In 19 of 20 cases it was less than that."),
                stat(
                    "Money lost",
                    f"sum by (currency) (max by (cluster, currency) (laggard_gpu_hour_price{{{IN_CLUSTER}}}) * on "
                    f"(cluster) group_left () sum by (cluster) ({_week('likely')}))",
                    "{{currency}}",
                    "At gpu_hour_price of the collector's settings.",
                ),
                stat(
                    "Machines that fail again and again",
                    f"count({said('laggard_node_failures')}) or vector(0)",
                    "machines",
                    "Three failures in 30 days, or one within a week of a repair.",
                    thresholds=bad_above(1),
                ),
                stat(
                    "Findings that came back",
                    f"count({said('laggard_node_fault_returned')}) or vector(0)",
                    "findings",
                    "They had been over less than a week before.",
                    thresholds=bad_above(1),
                ),
            ),
        ),
        Row(
            "Over time",
            (
                Panel(
                    "GPU-hours a day, by kind",
                    "timeseries",
                    (Query(_BY_KIND, "{{kind}} {{cluster}}"),),
                    "What culprits took in the 24 hours before, while they were watched.",
                    stacked=True,
                ),
                Panel(
                    "ETTR and goodput",
                    "timeseries",
                    (
                        Query(said("laggard_job_ettr_ratio"), "ETTR {{job_id}} ({{user}}) {{cluster}}"),
                        Query(said("laggard_job_goodput_ratio"), "goodput {{job_id}} ({{user}}) {{cluster}}"),
                    ),
                    "The share of a job's time that was work which lasted, and the same without what slow ranks took.",
                    unit="percentunit",
                ),
            ),
        ),
        Row(
            "Machines",
            (
                Panel(
                    "Failures in 30 days",
                    "table",
                    (Query(f"sort_desc({said('laggard_node_failures')})", instant=True),),
                    "Times in which a machine had a critical finding, of those that fail again and again.",
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
