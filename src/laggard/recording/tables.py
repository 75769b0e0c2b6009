"""All timed records of a recorded job: each once, by rank. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.collectives import Collectives, ProcessGroup
from laggard.recording.clock_jumps import in_order_of_steps
from laggard.recording.columns import (
    COLLECTIVE_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    Columns,
    Table,
    concatenate,
)
from laggard.recording.duplicates import Deduplicated, without_duplicates
from laggard.recording.steps import RankSteps, rank_steps

CONTRADICTED_SHARE = 0.01
"""The share of a rank's records (CONTRADICTED_RECORDS at least) that must contradict each other for it to be two
processes."""
CONTRADICTED_RECORDS = 3


@dataclasses.dataclass(frozen=True)
class Tables:
    """The timed records of a job, ordered by rank. `contradicted` are the ranks whose records contradict each other,
    `set_back` those whose clock was set back."""

    steps: Table
    spans: Table
    collectives: Table
    own: Sequence[tuple[float, ...]]
    rejected: Counter[str]
    repeated: int
    contradicted: set[int]
    set_back: tuple[int, ...] = ()

    @property
    def waits_recorded(self) -> bool:
        """Whether anything says when a rank waited, so that waiting can be told from work."""
        return bool(len(self.collectives["rank"])) or bool((self.steps["own"] >= 0).any())

    def rank_steps(self, ranks: NDArray[np.int64]) -> list[RankSteps]:
        """The steps of each of `ranks`."""
        return [
            rank_steps(
                _of_rank(self.steps, rank), _of_rank(self.spans, rank), _of_rank(self.collectives, rank), self.own
            )
            for rank in ranks
        ]

    def collectives_of(self, ranks: NDArray[np.int64], groups: tuple[ProcessGroup, ...]) -> Collectives:
        """The collectives of `ranks` [R], ascending, which are in `groups`."""
        table = self.collectives
        known = np.isin(table["rank"], ranks)
        kept = table if known.all() else {name: values[known] for name, values in table.items()}
        return Collectives(
            column=np.searchsorted(ranks, kept["rank"]).astype(np.int32),
            step=kept["step"],
            group=kept["group"],
            op=kept["op"],
            seq=kept["seq"],
            size=kept["bytes"],
            peer=kept["peer"],
            start=kept["start"],
            end=kept["end"],
            waited=kept["waited"],
            groups=groups,
        )

    def last_step(self, rank: int) -> int | None:
        """The last step that the rank finished; None where it finished none."""
        steps = _of_rank(self.steps, rank)["step"]
        return int(steps.max()) if len(steps) else None

    def last_end(self, rank: int) -> float | None:
        """The time at which the rank's last step ended, on its clock."""
        ends = _of_rank(self.steps, rank)["end"]
        return float(ends.max()) if len(ends) else None

    def unfinished(self, rank: int) -> Unfinished | None:
        """The rank's last collective, where that never finished."""
        table = _of_rank(self.collectives, rank)
        if not len(table["rank"]):
            return None
        last = int(np.nanargmax(table["start"]))
        if np.isfinite(table["end"][last]) or table["op"][last] < 0:
            return None
        return Unfinished(int(table["op"][last]), int(table["group"][last]), int(table["seq"][last]))

    def entered(self, rank: int) -> dict[tuple[int, int, int], int]:
        """The number of collectives of each operation and group (their places in OPS and among the names), and peer,
        that the rank has entered by its records."""
        table = _of_rank(self.collectives, rank)
        known = (table["op"] >= 0) & (table["seq"] >= 0)
        lanes = np.stack([table[name][known].astype(np.int64) for name in ("op", "group", "peer")], axis=1)
        distinct, lane = np.unique(lanes, axis=0, return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.maximum.at(counts, lane.reshape(-1), table["seq"][known] + 1)
        return {
            (op, group, peer): count
            for (op, group, peer), count in zip(distinct.tolist(), counts.tolist(), strict=True)
        }


class Unfinished(NamedTuple):
    """A collective that never finished: its operation's place in OPS, its group's among the names, its number."""

    op: int
    group: int
    seq: int


def merge_parts(parts: Sequence[Columns]) -> Tables:
    """The records of all parts of one job."""
    own: list[tuple[float, ...]] = []
    steps = []
    for part in parts:
        shifted = ({**table, "own": np.where(table["own"] < 0, -1, table["own"] + len(own))} for table in part.steps)
        steps += list(shifted)
        own += part.own
    once = _once(steps, STEP_COLUMNS, ("rank", "step"))
    spans = [table for part in parts for table in part.spans]
    spans_once = _once(spans, SPAN_COLUMNS, ("rank", "step", "phase", "start", "end"))
    collectives = [table for part in parts for table in part.collectives]
    collectives_once = _once(collectives, COLLECTIVE_COLUMNS, ("rank", "group", "op", "peer", "seq"))
    each = (once, spans_once, collectives_once)
    (step_table, span_table, collective_table), set_back = in_order_of_steps([found.table for found in each])
    return Tables(
        step_table,
        span_table,
        collective_table,
        own,
        sum((part.rejected for part in parts), Counter()),
        sum(found.repeated for found in each),
        _contradicted(each),
        set_back,
    )


def _once(tables: Sequence[Table], columns: dict[str, Any], keys: Sequence[str]) -> Deduplicated:
    found = without_duplicates(concatenate(tables, columns), keys)
    ranks = found.table["rank"]
    if (ranks[1:] < ranks[:-1]).any():
        order = np.argsort(ranks, kind="stable")
        found = found._replace(table={name: values[order] for name, values in found.table.items()})
    return found


def _contradicted(tables: Sequence[Deduplicated]) -> set[int]:
    contradictions = Counter(np.concatenate([each.conflicting for each in tables]).tolist())
    ranks = set()
    for rank, count in contradictions.items():
        records = sum(len(_of_rank(each.table, rank)["rank"]) for each in tables)
        if count >= max(CONTRADICTED_RECORDS, CONTRADICTED_SHARE * records):
            ranks.add(int(rank))
    return ranks


def _of_rank(table: Table, rank: int) -> Table:
    first, last = np.searchsorted(table["rank"], (rank, rank + 1))
    return {name: values[first:last] for name, values in table.items()}
