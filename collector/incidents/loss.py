"""The loss by an incident, as the ledger counts it: numbers and names alone, kept beside the incident. Values alone."""

from __future__ import annotations

from msgspec import Struct

from laggard.collector.incidents.incident import Incident

STOPPING = ("hung", "dead")
"""The kinds of culprits for which the whole job stands still."""


class Loss(Struct, frozen=True, array_like=True):
    """Fields are those of the incident; `cause` is its culprit's kind, with the first finding of its machine. `share`:
    the largest share of the step time that it took."""

    id: int
    owner: int
    job_id: str
    kind: str
    cause: str
    nodes: tuple[str, ...]
    ranks: int
    opened_at: float
    seen_at: float
    closed_at: float | None
    closed_because: str
    lost_seconds: float | None
    doubtful_seconds: float
    window_seconds: float
    progressed_at: float
    share: float

    @property
    def stops(self) -> bool:
        """Whether the whole job stood still."""
        return self.kind in STOPPING

    @classmethod
    def of(cls, it: Incident) -> Loss:
        kind = it.culprit.kind
        return cls(
            id=it.id,
            owner=it.owner,
            job_id=it.job_id,
            kind=kind,
            cause=f"{kind}: {it.findings[0]}" if it.findings else kind,
            nodes=it.culprit.machines,
            ranks=it.world_size,
            opened_at=it.opened_at,
            seen_at=it.seen_at,
            closed_at=it.closed_at,
            closed_because=it.closed_because or "",
            lost_seconds=it.lost_seconds,
            doubtful_seconds=it.doubtful_seconds,
            window_seconds=it.window_seconds,
            progressed_at=it.progressed_at,
            share=it.most_recoverable_ratio or 0.0,
        )
