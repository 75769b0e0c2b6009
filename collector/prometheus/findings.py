"""What the store has of findings: the agents' metric laggard_finding, also where no agent can be asked: of another
cluster, or of a moment that is over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from laggard.collector.finding_places import NO_GPUS, node_findings
from laggard.collector.jobs.failing_nodes import failing_note
from laggard.collector.prometheus import queries
from laggard.collector.prometheus.answer import Labels
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.counters import machine
from laggard.locate.node_findings import NodeFindings
from laggard.model import Finding, Fix, Note, Severity
from laggard.wire.node_finding import NodeFinding
from laggard.wire.nodes import NodeRow

_CRITICAL = ("severity=", Severity.CRITICAL.value)
_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_MAX_DEVICE = 256


class _Stored(NamedTuple):
    cluster: str
    machine: str
    finding: Finding


def findings_of(
    prometheus: Prometheus, cluster: str | None, instances: Mapping[str, str], moment: float
) -> dict[str, NodeFindings]:
    """The findings of these nodes at that moment, by node. `instances`: what was scraped on each, by node."""
    machines = {node: machine(instance) for node, instance in instances.items() if instance}
    if not machines:
        return {}
    some = ("instance=~", f"({'|'.join(map(re.escape, sorted(set(machines.values()))))})(:[0-9]+)?")
    by_machine: dict[str, list[Finding]] = {}
    for each in _stored(prometheus, cluster, moment, some):
        by_machine.setdefault(each.machine, []).append(each.finding)
    return {node: node_findings(by_machine.get(name, ()), NO_GPUS) for node, name in machines.items()}


def failing_nodes(
    prometheus: Prometheus, cluster: str | None, moment: float | None, among: frozenset[str] | None = None
) -> Note | None:
    """The note on nodes with critical findings; None where there is none. `among`: the machines that count, None: all
    that report to this store."""
    found = [it for it in _stored(prometheus, cluster, moment, _CRITICAL) if among is None or it.machine in among]
    if not found:
        return None
    several = len({each.cluster for each in found}) > 1
    names = {(it.cluster, it.machine): f"{it.machine} ({it.cluster})" if several else it.machine for it in found}
    reported = _machines(prometheus, cluster, moment) if among is None else [("", name) for name in among]
    rows = [_row(name, "fail") for name in names.values()]
    rows += [_row(str(number), "ok") for number in range(len(reported) - len(rows))]
    told = [NodeFinding(names[it.cluster, it.machine], "", it.finding) for it in found]
    return failing_note(rows, told)


def _stored(
    prometheus: Prometheus, cluster: str | None, moment: float | None, matcher: tuple[str, str]
) -> Iterator[_Stored]:
    for labels in _series(prometheus, queries.selector(queries.FINDING, None, matcher, *_of(cluster)), moment):
        try:
            severity = Severity(labels.severity)
        except ValueError:
            continue  # no metric of laggard's
        if _CODE.fullmatch(labels.code) and labels.instance and len(labels.device) <= _MAX_DEVICE:
            finding = Finding(labels.code, severity, labels.device, "", {}, Fix(""), "")
            yield _Stored(labels.cluster, machine(labels.instance), finding)


def _machines(prometheus: Prometheus, cluster: str | None, moment: float | None) -> list[tuple[str, str]]:
    """The machines of which agents report their probes, each once."""
    query = f"group by (cluster, instance) ({queries.selector(queries.PROBED, None, *_of(cluster))})"
    found = ((labels.cluster, machine(labels.instance)) for labels in _series(prometheus, query, moment))
    return list(dict.fromkeys(found))


def _series(prometheus: Prometheus, query: str, moment: float | None) -> Iterable[Labels]:
    if moment is not None:
        return prometheus.labels_at(query, moment)
    return [labels for part in prometheus.at(query, None) for labels in part.labels]


def _of(cluster: str | None) -> list[tuple[str, str]]:
    return [] if cluster is None else [("cluster=", cluster)]


def _row(name: str, verdict: str) -> NodeRow:
    return NodeRow(name, name or None, "up", "", None, verdict, (), ())
