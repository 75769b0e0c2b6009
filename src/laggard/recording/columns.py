"""Records as columns: what a recording has in masses is held in arrays, not in objects."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.constants import OPS, PHASES
from laggard.locate.medians import distinct
from laggard.recording.records import Record

Table = dict[str, NDArray[Any]]
"""Columns of equal length. Unknown numbers are -1, unknown times nan."""

OTHER = PHASES.index("other")
PHASE_INDEX = {name: index for index, name in enumerate(PHASES)}
OP_INDEX = {name: index for index, name in enumerate(OPS)}

STEP_COLUMNS = {
    "rank": np.int32,
    "step": np.int64,
    "start": np.float64,
    "end": np.float64,
    "own": np.int32,
    "work": np.float64,
}
SPAN_COLUMNS = {"rank": np.int32, "step": np.int64, "phase": np.int8, "start": np.float64, "end": np.float64}
COLLECTIVE_COLUMNS = {
    "rank": np.int32,
    "step": np.int64,
    "group": np.int32,
    "op": np.int8,
    "seq": np.int64,
    "bytes": np.int64,
    "peer": np.int32,
    "start": np.float64,
    "end": np.float64,
    "waited": np.float64,
}


@dataclasses.dataclass
class Columns:
    """The timed records of one part of a recording, built up chunk by chunk. `own` holds the own times by phase, and
    the time waited, of the steps that carry them; a step's `own` is its place there. `rejected` counts what was left
    out, by the reason. `group_names` is shared by all parts of a recording: a group's number is its place there."""

    group_names: dict[str, int]
    steps: list[Table] = dataclasses.field(default_factory=list)
    spans: list[Table] = dataclasses.field(default_factory=list)
    collectives: list[Table] = dataclasses.field(default_factory=list)
    own: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    rejected: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, records: Iterable[Record]) -> None:
        """Adds a chunk of step, span and collective records."""
        by_kind: dict[str, list[Record]] = {"step": [], "span": [], "collective": []}
        for record in records:
            by_kind[record.kind].append(record)
        self._add_steps(by_kind["step"])
        self._add_spans(by_kind["span"])
        self._add_collectives(by_kind["collective"])

    @property
    def count(self) -> int:
        return sum(len(table["rank"]) for table in (*self.steps, *self.spans, *self.collectives))

    def ranks(self) -> set[int]:
        return {
            int(rank) for table in (*self.steps, *self.spans, *self.collectives) for rank in distinct(table["rank"])
        }

    def _add_steps(self, records: list[Record]) -> None:
        if not records:
            return
        table = _bounds(records)
        table["own"] = np.array([self._keep_own(each) for each in records], np.int32)
        table["work"] = np.array([max(each.work or 0, 0) for each in records], np.float64)
        self.steps.append(self._valid(table, "step", table["step"] >= 0))

    def _keep_own(self, record: Record) -> int:
        if record.own is None or record.waited is None:
            return -1
        self.own.append((*(record.own.get(name, 0.0) for name in PHASES), record.waited))
        return len(self.own) - 1

    def _add_spans(self, records: list[Record]) -> None:
        if not records:
            return
        table = _bounds(records)
        table["phase"] = np.array([PHASE_INDEX.get(each.name or "", OTHER) for each in records], np.int8)
        self.spans.append(self._valid(table, "span", table["step"] >= 0))

    def _add_collectives(self, records: list[Record]) -> None:
        if not records:
            return
        names = self.group_names
        table = _bounds(records)
        issued = _times([each.issued for each in records])
        table["start"] = np.where(np.isnan(table["start"]), issued, table["start"])
        table["group"] = np.array([names.setdefault(each.group or "", len(names)) for each in records], np.int32)
        table["op"] = np.array([OP_INDEX.get(each.op or "", -1) for each in records], np.int8)
        table["seq"] = _numbers([each.seq for each in records])
        table["bytes"] = _numbers([each.bytes for each in records])
        table["peer"] = _numbers([each.peer for each in records]).astype(np.int32)
        waited = table["waited"] = _times([each.waited for each in records])
        negative = waited < 0
        self._reject("collective records that waited for less than nothing", negative)
        self.collectives.append(self._valid(_rows(table, ~negative), "collective", None, unfinished=True))

    def _valid(self, table: Table, kind: str, numbered: NDArray[np.bool_] | None, unfinished: bool = False) -> Table:
        """The rows that can be used. `unfinished`: whether a row may lack its end. `numbered`: which rows have a step,
        None where they need none."""
        begun = np.isfinite(table["start"])
        ended = np.isfinite(table["end"])
        backwards = table["end"] < table["start"]
        self._reject(f"{kind} records without a start", ~begun)
        self._reject(f"{kind} records that end before they start", backwards)
        usable = begun & ~backwards & (ended | unfinished)
        if numbered is not None:
            self._reject(f"{kind} records without a step", ~numbered)
            usable &= numbered
        return _rows(table, usable)

    def _reject(self, reason: str, rows: NDArray[np.bool_]) -> None:
        count = int(rows.sum())
        if count:
            self.rejected[reason] += count


def _bounds(records: Sequence[Record]) -> Table:
    return {
        "rank": np.array([each.rank for each in records], np.int32),
        "step": _numbers([each.step for each in records]),
        "start": _times([each.start for each in records]),
        "end": _times([each.end for each in records]),
    }


def _times(values: list[float | None]) -> NDArray[np.float64]:
    return np.array(values, np.float64)  # None becomes nan


def _numbers(values: list[int | None]) -> NDArray[np.int64]:
    return np.array([-1 if value is None else value for value in values], np.int64)


def _rows(table: Table, keep: NDArray[np.bool_]) -> Table:
    return table if keep.all() else {name: values[keep] for name, values in table.items()}


def concatenate(tables: Sequence[Table], columns: dict[str, Any]) -> Table:
    """The rows of all `tables`; without any, empty columns."""
    return {
        name: np.concatenate([table[name] for table in tables]) if tables else np.zeros(0, kind)
        for name, kind in columns.items()
    }
