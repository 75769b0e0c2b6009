"""`laggard.comparison/1`: a run beside an earlier one of the same program."""

from __future__ import annotations

from msgspec import Struct

from laggard.model import Note, Verdict

COMPARISON_SCHEMA = "laggard.comparison/1"


class Change(Struct, frozen=True, kw_only=True):
    """A part of the step that takes longer than before, or shorter (`seconds` below 0). `kind`: `phase` (own time),
    `operation` (how long a step is blocked by its transfers, whoever comes last), `collectives` (the same for all of
    them, where a run tells no more) or `step`. `low_seconds` and `high_seconds`: the 95 % interval of `seconds`.
    `ratio`: `seconds` over `before_seconds`, null where there was nothing before. `share`: of the change of the whole
    step; null where that is none for certain. `ranks` (64 at most) and `nodes`: where, empty for all ranks; of an
    operation the slowest group's."""

    kind: str
    phase: str | None = None
    op: str | None = None
    role: str | None = None
    members: int | None = None
    size_bytes: int | None = None
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    before_seconds: float
    now_seconds: float
    seconds: float
    low_seconds: float
    high_seconds: float
    ratio: float | None
    share: float | None = None


class Difference(Struct, frozen=True):
    """Something else that is not as it was. `before` or `now` empty: it was not there, or is no longer."""

    name: str
    before: str
    now: str


class Comparison(Struct, frozen=True, kw_only=True):
    """How long a job's steps take beside those of an earlier run of the same program (`laggard.comparison/1`).
    `verdict`: `fail` where they take longer, `unknown` where the two cannot be compared: `not_alike` says why.
    `changes`: the parts of the step that take longer or shorter, the largest change first. `differences`: versions,
    variables, settings and nodes that are not as they were; null where one of the runs does not tell.
    `smallest_seconds`: by phase, the smallest change in all ranks that would have been seen, in seconds a step."""

    verdict: Verdict
    job_id: str | None
    against: str
    step: Change | None
    changes: tuple[Change, ...] = ()
    differences: tuple[Difference, ...] | None = None
    not_alike: tuple[Difference, ...] = ()
    smallest_seconds: dict[str, float] = {}
    notes: tuple[Note, ...] = ()
    schema: str = COMPARISON_SCHEMA
