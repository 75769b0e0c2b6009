"""What localisation reads: one job's ranks and steps as arrays, from a live window or from a recording."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.constants import PHASES
from laggard.wire import Beat, InFlight, RankRow, StepRow

WINDOW_STEPS = 128
"""How many of the newest steps a verdict looks at."""

Floats = NDArray[np.float64]


class RankState(NamedTuple):
    """How a rank's process stands. `step`: the last step that it finished, None before the first. `stopped`: by a
    signal or a debugger. `beat`: its last sign of life."""

    state: str  # running, finished, died
    step: int | None
    phase: str | None
    in_flight: InFlight | None
    stopped: bool = False
    beat: Beat | None = None


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One job over S steps and R ranks. Times in seconds; nan where a rank was not seen in a step.

    No clock is compared with another rank's: every number is a duration on the rank's own clock.
    `phase_seconds` is own time: the time blocked in collectives is taken out and stands in `waited_seconds`, so
    that step_seconds = phase_seconds.sum(axis=2) + waited_seconds.
    """

    job_id: str | None
    world_size: int
    steps: NDArray[np.int64]  # [S]
    ranks: NDArray[np.int64]  # [R]
    nodes: tuple[str | None, ...]  # R
    gpus: tuple[str | None, ...]  # R
    step_seconds: Floats  # [S, R]
    phase_seconds: Floats  # [S, R, len(PHASES)]
    waited_seconds: Floats  # [S, R]
    states: tuple[RankState, ...]  # R
    findings_by_node: Mapping[str, tuple[str, ...]]


class Member(NamedTuple):
    """Who a rank is."""

    node: str | None
    gpu: str | None
    state: RankState


def build_evidence(
    job_id: str | None,
    world_size: int,
    members: Mapping[int, Member],
    rows_by_rank: Mapping[int, Iterable[StepRow]],
    findings_by_node: Mapping[str, tuple[str, ...]],
) -> Evidence:
    """Arrays from rows: the steps that any rank finished, for every rank that is known."""
    ranks = sorted(members)
    columns = {rank: column for column, rank in enumerate(ranks)}
    rows = [(columns[rank], row) for rank in ranks for row in rows_by_rank.get(rank, ())]
    steps = sorted({row.step for _, row in rows})
    index = {step: place for place, step in enumerate(steps)}
    shape = (len(steps), len(ranks))
    step_seconds, waited = np.full(shape, np.nan), np.full(shape, np.nan)
    phases = np.full((*shape, len(PHASES)), np.nan)
    # All at once: a hundred thousand single assignments would take a large part of the collector's round.
    places = np.array([index[row.step] for _, row in rows], dtype=np.int64), np.array([at for at, _ in rows], np.int64)
    step_seconds[places] = [row.end - row.start for _, row in rows]
    waited[places] = [row.waited for _, row in rows]
    phases[places] = np.array([row.phases for _, row in rows]).reshape(len(rows), len(PHASES))
    return Evidence(
        job_id=job_id,
        world_size=world_size,
        steps=np.array(steps, dtype=np.int64),
        ranks=np.array(ranks, dtype=np.int64),
        nodes=tuple(members[rank].node for rank in ranks),
        gpus=tuple(members[rank].gpu for rank in ranks),
        step_seconds=step_seconds,
        phase_seconds=phases,
        waited_seconds=waited,
        states=tuple(members[rank].state for rank in ranks),
        findings_by_node=findings_by_node,
    )


def evidence_from_rows(
    job_id: str,
    world_size: int,
    rows_by_rank: Mapping[int, Sequence[StepRow]],
    identities: Mapping[int, RankRow],
    findings_by_node: Mapping[str, tuple[str, ...]],
) -> Evidence:
    """The evidence in a live window: step rows by rank, and the newest row about each rank."""
    members = {}
    for rank, known in identities.items():
        rows = rows_by_rank.get(rank, ())
        state = RankState(
            known.state, rows[-1].step if rows else None, known.phase, known.in_flight, known.stopped, known.beat
        )
        members[rank] = Member(known.node, known.gpu, state)
    return build_evidence(job_id, world_size, members, rows_by_rank, findings_by_node)
