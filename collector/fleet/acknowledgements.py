"""What operators have acknowledged here: kept over restarts in a small file, or in a database that several collectors
share; and each ends by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from msgspec import structs

from laggard.acknowledge.asked import NotAcknowledged, acknowledgement, without
from laggard.acknowledge.kept_file import MAX_ACKNOWLEDGEMENTS, KeptFileError, read_kept, write_kept
from laggard.acknowledge.matching import find, holding, severity_of, with_acknowledgement
from laggard.collector.fleet.nonces import Nonces
from laggard.collector.incidents.acknowledgement_rows import change_shared, read_shared
from laggard.collector.incidents.engine import DatabaseError
from laggard.database_url import is_database_url
from laggard.model import Finding, Severity, Verdict
from laggard.wire.acknowledgement import AcknowledgeAsk, Acknowledgement
from laggard.wire.node_finding import NodeFinding
from laggard.wire.nodes import NodeRow

log = logging.getLogger("laggard.collector")

CLOCK_SECONDS: Final = 300.0
"""The largest difference between the clocks of who asks and the collector: older questions may be an eavesdropper's."""
_MAX_NONCES: Final = 1 << 12


class Acknowledgements:
    """Threads may ask at once. `path`: of the file, or the URL of the database; empty: nothing is kept."""

    def __init__(self, path: str, since: float = 0.0) -> None:
        """`since`: when this collector started, Unix time."""
        self._path = path
        self._failing = ""
        self._lock = threading.Lock()  # of the nonces; nobody waits for the database with it
        self._turn = threading.Lock()
        self._known: tuple[Acknowledgement, ...] = ()
        self._nonces = Nonces(CLOCK_SECONDS, _MAX_NONCES, since)
        self.is_shared = is_database_url(path)
        if self.is_shared:
            self.learn()
        elif path:
            try:
                self._known = read_kept(path)
            except KeptFileError as error:
                log.warning("acknowledged_file: %s; nothing is acknowledged", error)

    def learn(self) -> None:
        """Reads what the collectors that share a database have acknowledged. While it does not answer, what it said
        last holds."""
        try:
            with self._turn:
                self._known = read_shared(self._path)
            self._failing = ""
        except DatabaseError as error:
            if str(error) != self._failing:
                self._failing = str(error)
                log.warning("acknowledgements: %s; those hold that are known here", error)

    def holding(self, now: float) -> tuple[Acknowledgement, ...]:
        """Those that have not ended at the Unix time `now`, in the order in which they end."""
        return holding(self._known, now)

    def refusal(self, ask: AcknowledgeAsk, now: float) -> str:
        """Returns why a signed question counts for nothing: it was heard before, or is from another time."""
        with self._lock:
            return self._nonces.refusal(ask.nonce, ask.at, now)

    def grant(self, ask: AcknowledgeAsk, present: Iterable[Finding], now: float) -> tuple[Acknowledgement, ...]:
        """Acknowledges or withdraws what `ask` says. Returns the one that was added or has ended. `present`: the
        findings on its nodes now. Raises NotAcknowledged."""
        with self._turn:
            granted: list[Acknowledgement] = []

            def change(held: tuple[Acknowledgement, ...]) -> tuple[Acknowledgement, ...]:
                known = holding(held, now)
                if ask.withdraw:
                    rest = without(known, ask.withdraw)
                    granted[:] = [it for it in known if it not in rest]
                    return rest
                if len(known) >= MAX_ACKNOWLEDGEMENTS:
                    raise NotAcknowledged(f"{len(known)} acknowledgements hold already: withdraw some")
                granted[:] = [acknowledgement(ask, present, now)]
                return (*known, *granted)

            self._change(change)
            return tuple(granted)

    def _change(self, change: Callable[[tuple[Acknowledgement, ...]], tuple[Acknowledgement, ...]]) -> None:
        """Raises NotAcknowledged where it cannot be kept: what a restart would forget is not promised."""
        try:
            if self.is_shared:
                self._known = change_shared(self._path, change)
                return
            changed = change(self._known)
            if self._path:
                write_kept(self._path, changed)
            self._known = changed
        except KeptFileError as error:
            raise NotAcknowledged(f"acknowledged_file of the collector: {error}") from None
        except DatabaseError as error:
            raise NotAcknowledged(f"incidents_database of the collector: {error}") from None


def known_findings(
    findings: Iterable[NodeFinding], acknowledged: Sequence[Acknowledgement], now: float
) -> tuple[NodeFinding, ...]:
    """The findings, with those as warnings at most that are acknowledged."""
    if not acknowledged:
        return tuple(findings)
    by_node: dict[str, list[Acknowledgement]] = {}
    for it in acknowledged:
        for node in it.nodes:
            by_node.setdefault(node, []).append(structs.replace(it, nodes=(node,)))
    return tuple(_known(it, by_node.get(it.node, ()), now) for it in findings)


def judged_rows(
    rows: Iterable[NodeRow], findings: Collection[NodeFinding], unknown: Collection[str]
) -> tuple[NodeRow, ...]:
    """The rows, in which a node does not fail of which everything critical is acknowledged. `findings`: as
    known_findings() gives them; `unknown`: the agents' URLs where a check cannot tell."""
    critical = {it.node for it in findings if it.finding.severity is Severity.CRITICAL}
    known = {it.node for it in findings if severity_of(it.finding) is not it.finding.severity} - critical
    return tuple(
        structs.replace(row, verdict=(Verdict.UNKNOWN if row.url in unknown else Verdict.OK).value)
        if row.node in known and row.verdict == Verdict.FAIL.value
        else row
        for row in rows
    )


def _known(found: NodeFinding, acknowledged: Sequence[Acknowledgement], now: float) -> NodeFinding:
    by = find(acknowledged, found.node, found.finding, now)
    return found if by is None else structs.replace(found, finding=with_acknowledgement(found.finding, by))
