"""The documents about what was: a machine's history, and what incidents cost."""

from __future__ import annotations

from msgspec import structs

from laggard.collector.incidents.incident import MAX_LIMIT, Incident, IncidentQuery
from laggard.collector.ledger.ledger import CostDocument, ledger
from laggard.collector.node_history import MAX_FAULTS, NodeHistoryDocument, history_of_rows
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.source import Incidents
from laggard.text.users import user_name


def node_history_of(incidents: Incidents, node: str, now: float) -> NodeHistoryDocument:
    """The history of the machine that has this name now, under the names that it had before, too."""
    query = IncidentQuery(node=node, limit=MAX_LIMIT)

    def of_name(name: str) -> tuple[Incident, ...]:
        return incidents.document(query._replace(node=name)).incidents

    return history_of_rows(node, incidents.machine(node, MAX_FAULTS), of_name, now, incidents.told_state())


def cost_of(incidents: Incidents, settings: CollectorSettings, since: float, until: float, by: str) -> CostDocument:
    """The cost of incidents between the two Unix times."""
    losses, runs = incidents.losses(since)
    state = incidents.told_state()
    history = "" if state.state == "on" else f"only what is open is known: {state.reason}"
    price, currency = settings.gpu_hour_price, settings.currency
    found = ledger(losses, runs, since, until, by, user_name, price, currency)
    return structs.replace(found, history=history)
