"""The document about what was: a machine's history."""

from __future__ import annotations

from laggard.collector.incidents.incident import MAX_LIMIT, Incident, IncidentQuery
from laggard.collector.node_history import MAX_FAULTS, NodeHistoryDocument, history_of_rows
from laggard.collector.web.source import Incidents


def node_history_of(incidents: Incidents, node: str, now: float) -> NodeHistoryDocument:
    """The history of the machine that has this name now, under the names that it had before, too."""
    query = IncidentQuery(node=node, limit=MAX_LIMIT)

    def of_name(name: str) -> tuple[Incident, ...]:
        return incidents.document(query._replace(node=name)).incidents

    return history_of_rows(node, incidents.machine(node, MAX_FAULTS), of_name, now, incidents.told_state())
