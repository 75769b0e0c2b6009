"""Recordings as columns, for adapters that compute something from them themselves."""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Line(msgspec.Struct):
    """A line of a recording, of any kind. What a line lacks is None."""

    kind: str | None = None
    rank: int = -1
    node: str | None = None
    groups: dict[str, dict[str, Any]] | None = None
    step: int | None = None
    name: str | None = None
    group: str | None = None
    op: str | None = None
    seq: int = -1
    peer: int | None = None
    start: float | None = None
    end: float | None = None
    waited: float | None = None


class Collectives(NamedTuple):
    """Columns of the collectives. `group` and `op` are numbers; `key` is the same for the members of one collective.
    `end` is NaN where it never ended."""

    rank: Ints
    step: Ints
    group: Ints
    op: Ints
    seq: Ints
    peer: Ints
    key: Ints
    start: Floats
    end: Floats
    waited: Floats


class Trace(NamedTuple):
    """`spans` has for each phase (steps, ranks) seconds from begin to end, `waits` the seconds of it in collectives;
    `lengths` those of the steps. NaN: no record. `members` are the ranks of each group by its number."""

    nodes: list[str]
    members: list[tuple[int, ...]]
    ops: list[str]
    collectives: Collectives
    spans: dict[str, Floats]
    waits: dict[str, Floats]
    begins: dict[str, Floats]
    lengths: Floats

    @property
    def ranks(self) -> int:
        return len(self.nodes)

    def own(self, phase: str) -> Floats:
        return self.spans[phase] - self.waits[phase]


def medians(values: Floats) -> Floats:
    """Returns each rank's median over the steps, NaN where it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a rank that has none
        return np.asarray(np.nanmedian(values, axis=0))


def read(directory: Path) -> Trace:
    """Reads every recording in the directory. The last one read is kept, for the next tool that asks for it."""
    return read_once(directory, directory.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def read_once(directory: Path, changed: int) -> Trace:
    decode = msgspec.json.Decoder(Line).decode
    lines = [
        decode(line) for file in sorted(directory.glob("*.jsonl")) for line in file.read_bytes().splitlines() if line
    ]
    ranks = 1 + max(line.rank for line in lines)
    calls = [line for line in lines if line.kind == "collective"]
    steps = 1 + max((line.step for line in lines if line.step is not None), default=0)
    nodes, groups = [""] * ranks, {}
    for line in lines:
        if line.kind == "rank":
            nodes[line.rank] = line.node or ""
            for name, group in (line.groups or {}).items():
                groups.setdefault(name, tuple(group["ranks"]))
    names = {name: number for number, name in enumerate(groups)}
    ops = sorted({call.op or "" for call in calls})
    collectives = columns(calls, names, {op: number for number, op in enumerate(ops)})
    shape = steps, ranks
    phases = sorted({line.name for line in lines if line.kind == "span" and line.name})
    spans, waits, begins = ({phase: np.full(shape, np.nan) for phase in phases} for _ in range(3))
    lengths = np.full(shape, np.nan)
    timed = [line for line in lines if line.step is not None and line.start is not None and line.end is not None]
    of_step: dict[tuple[int, int], tuple[list[Line], list[Line]]] = {}
    for line in timed:
        assert line.step is not None and line.start is not None and line.end is not None
        if line.kind == "step":
            lengths[line.step, line.rank] = line.end - line.start
        elif line.kind == "span" and line.name:
            of_step.setdefault((line.step, line.rank), ([], []))[0].append(line)
        elif line.kind == "collective" and line.waited:
            of_step.setdefault((line.step, line.rank), ([], []))[1].append(line)
    for place, (mine, waiting) in of_step.items():
        for span, waited in zip(mine, waits_in(mine, waiting), strict=True):
            assert span.name is not None and span.start is not None and span.end is not None
            add(spans[span.name], place, span.end - span.start)
            add(waits[span.name], place, waited)
            begins[span.name][place] = np.fmin(begins[span.name][place], span.start)
    return Trace(nodes, list(groups.values()), ops, collectives, spans, waits, begins, lengths)


def add(array: Floats, place: tuple[int, int], seconds: float) -> None:
    array[place] = seconds if np.isnan(array[place]) else array[place] + seconds


def waits_in(spans: list[Line], calls: list[Line]) -> list[float]:
    """Returns for each span how much of it the caller was blocked: the overlap with each call's last `waited`
    seconds."""
    starts, ends = np.array([span.start for span in spans]), np.array([span.end for span in spans])
    done = np.array([call.end for call in calls], dtype=float)
    begun = done - np.array([call.waited for call in calls], dtype=float)
    overlaps = np.minimum(ends[:, None], done) - np.maximum(starts[:, None], begun)
    return [float(seconds) for seconds in np.clip(overlaps, 0.0, None).sum(axis=1)]


def columns(calls: list[Line], names: dict[str, int], ops: dict[str, int]) -> Collectives:
    pairs = ("send", "recv")
    keys: dict[tuple[Any, ...], int] = {}
    found = []
    for call in calls:
        group, op = names.get(call.group or "", -1), ops[call.op or ""]
        peer = -1 if call.peer is None else call.peer
        if call.op in pairs:
            key: tuple[Any, ...] = ("pair", *((call.rank, peer) if call.op == "send" else (peer, call.rank)), call.seq)
        else:
            key = (group, op, call.seq)
        number = keys.setdefault(key, len(keys))
        found.append((call.rank, -1 if call.step is None else call.step, group, op, call.seq, peer, number))
    whole = np.array(found, dtype=np.int64).reshape(-1, 7)
    times = np.array(
        [(call.start, np.nan if call.end is None else call.end, call.waited or 0.0) for call in calls], dtype=float
    ).reshape(-1, 3)
    return Collectives(*whole.T, *times.T)
