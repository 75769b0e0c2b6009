"""`laggard.digest/1`: a run in a few kilobytes, with which later runs are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from laggard.kit.words import printable_line
from laggard.model import Note, Verdict
from laggard.rankfile import fact_names

DIGEST_SCHEMA = "laggard.digest/1"

IN_FEW_STEPS = " in few steps"
"""The ending of the name of a phase where it stands for what few steps have beyond the usual."""

MAX_ROWS = 64
MAX_OPERATIONS = 24
MAX_NODES = 64
MAX_TEXT = 200
"""Characters of a name or a value."""

MAX_ENVIRONMENT = 256

Text = Annotated[str, Meta(max_length=4 * MAX_TEXT)]
Seconds = Annotated[float, Meta(gt=-1e12, lt=1e12)]


class Estimate(Struct, frozen=True, array_like=True):
    """What something takes, in seconds a step, and the standard error of that, with what the next run of the same
    program may differ by."""

    seconds: Seconds
    error: Annotated[float, Meta(ge=0, lt=1e12)]


class DigestRow(Struct, frozen=True, omit_defaults=True):
    """A rank, or in a large job the ranks of a node. `ranks`: as runs of first, count, stride in one list. `alike`: the
    same number for rows whose ranks do the same work. `whole`: it stands for all of them, beside rows of the nodes that
    differ the most. `own`: their own time by phase, in the order of the digest's `phases`."""

    ranks: tuple[int, ...]
    node: Text | None
    alike: int
    own: tuple[Estimate, ...]
    whole: bool = False


class DigestOperation(Struct, frozen=True):
    """The collectives of one operation in `groups` groups of one role that have `members` ranks each, or the sends and
    receives of so many pairs. `size_bytes`: of one, null where they differ or are not known; `bytes` and `count`: a
    step, in one group. `usual` and `slowest`: how long a step is blocked by them at least, whoever comes last: their
    transfer; in the group in the middle, and in the slowest, which has `slowest_ranks` (as a row's `ranks`)."""

    op: Text
    role: Text
    members: int
    groups: int
    size_bytes: int | None
    bytes: float
    count: float
    usual: Estimate
    slowest: Estimate
    slowest_ranks: tuple[int, ...] = ()


class Digest(Struct, frozen=True, kw_only=True):
    """A run in a few kilobytes (`laggard.digest/1`). `step`: a usual step; `rare`: what few steps have beyond it, such
    as checkpoints, on average of all. `waits`: the time for which even the rank that waits least is blocked in
    collectives. `drift`: the ratio of the last third of the steps to the first. `layout`: its process groups, as
    `8 x dp of 4`. `calls`: collectives a step of a rank, by operation and role. `work`: elements of the model's inputs
    a step of a rank; 0 where they were not seen. `environment`: versions, variables and settings, by name, those that
    differ between ranks joined. `healthy`: whether its verdict was `ok`."""

    job_id: Text | None
    owner: int | None = None
    script: Text | None
    started_at: float | None
    made_at: float | None = None
    world_size: int
    ranks_seen: int
    first_step: int
    last_step: int
    steps: int
    step: Estimate
    rare: Estimate
    waits: Estimate | None
    drift: float
    phases: Annotated[tuple[Text, ...], Meta(max_length=32)]
    rows: Annotated[tuple[DigestRow, ...], Meta(max_length=MAX_ROWS)]
    operations: Annotated[tuple[DigestOperation, ...], Meta(max_length=MAX_OPERATIONS)]
    layout: Annotated[tuple[Text, ...], Meta(max_length=64)]
    calls: dict[str, float]
    work: float
    nodes: Annotated[tuple[Text, ...], Meta(max_length=MAX_NODES)]
    environment: dict[str, str]
    healthy: bool | None = None
    schema: str = DIGEST_SCHEMA


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


_MAX_VALUES = 4  # of one name, told by different ranks


def merged_environment(facts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The facts ENVIRONMENT and DEEPSPEED of all ranks; where ranks differ, their values side by side. Ranks may tell
    anything: what is no text or number is left out, and so is what is beyond the bounds of a digest."""
    values: dict[str, dict[str, None]] = {}
    for of_rank in facts:
        for fact, prefix in ((fact_names.ENVIRONMENT, ""), (fact_names.DEEPSPEED, "deepspeed ")):
            told = of_rank.get(fact)
            for name, value in told.items() if isinstance(told, dict) else ():
                known = values.get(name := printable_line(f"{prefix}{name}", MAX_TEXT))
                if known is None and len(values) < MAX_ENVIRONMENT:
                    known = values[name] = {}
                if known is not None and len(known) < _MAX_VALUES and isinstance(value, (str, int, float)):
                    known[printable_line(str(value), MAX_TEXT)] = None
    return {name: " | ".join(sorted(each))[: 2 * MAX_TEXT] for name, each in sorted(values.items()) if each}
