"""The documents about what was: a machine's history, and what incidents cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import structs

from laggard.collector.incidents.incident import MAX_LIMIT, HistoryState, Incident, IncidentQuery
from laggard.collector.incidents.node_tables import MachineRows
from laggard.collector.ledger.ledger import CostDocument, ledger
from laggard.collector.node_history import (
    MAX_FAULTS,
    NodeHistoryDocument,
    incidents_since,
    incidents_under,
    node_history,
)
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.source import Incidents
from laggard.text.users import user_text

MAX_NAMES = 8
"""The most former names of a machine whose incidents are looked up."""


def node_history_of(incidents: Incidents, node: str, now: float) -> NodeHistoryDocument:
    """The history of the machine that has this name now, under the names that it had before, too."""
    query = IncidentQuery(node=node, limit=MAX_LIMIT)

    def of_name(name: str) -> tuple[Incident, ...]:
        return incidents.document(query._replace(node=name)).incidents

    return history_of_rows(node, incidents.machine(node, MAX_FAULTS), of_name, now, incidents.told_state())


def history_of_rows(
    node: str, rows: MachineRows, of_name: Callable[[str], Iterable[Incident]], now: float, state: HistoryState
) -> NodeHistoryDocument:
    """`of_name`: the newest incidents of a name."""
    names = sorted(rows.names, key=lambda it: (it.node != node, -it.seen_at))
    found = {it.id: it for it in incidents_since(rows.others_until, of_name(node))}
    for name in names[1 : MAX_NAMES + 1]:
        found |= {it.id: it for it in incidents_under(name, of_name(name.node))}
    newest = sorted(found.values(), key=lambda it: -it.id)
    return node_history(node, rows.faults, names, newest, now, state)


def cost_of(incidents: Incidents, settings: CollectorSettings, since: float, until: float, by: str) -> CostDocument:
    """What incidents took between the two Unix times."""
    losses, runs = incidents.losses(since)
    state = incidents.told_state()
    history = "" if state.state == "on" else f"only what is open is known: {state.reason}"
    price, currency = settings.gpu_hour_price, settings.currency
    found = ledger(losses, runs, since, until, by, user_text, price, currency)
    return structs.replace(found, history=history)
