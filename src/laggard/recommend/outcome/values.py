"""The outcomes of advice: whether it was done, and what that gained (`laggard.advice/1`)."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from laggard.recommend.advice.values import Gain
from laggard.wire.digest import Digest

ADVICE_SCHEMA: Final = "laggard.advice/1"

YES: Final = "yes"
NO: Final = "no"
UNKNOWN: Final = "unknown"

CULPRIT: Final = "culprit"
FINDING: Final = "finding"
"""The targets of advice that is not about a setting."""

GAINED: Final = "gained"
NO_DIFFERENCE: Final = "no_difference"
LOST: Final = "lost"

MAX_ADVICE: Final = 32
"""The most pieces of advice of one run."""

MAX_TEXT: Final = 300
"""Characters of a name, a value or a reason."""

Text = Annotated[str, Meta(max_length=4 * MAX_TEXT)]


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of one piece of advice. `done`: `yes`, `no` or `unknown`; `how` says by what that is known. `result`:
    `gained`, `no_difference` or `lost` where it was done and the two runs can be compared, else `unknown`: `why` says
    which difference is in the way. `ratio`: the throughput since over that before, with its 95 % interval; also where
    several things were done at once, which have it together. `as_promised`: whether that interval and the promised
    one have a value in common; null where nothing was promised or measured. `job_id` and `started_at`: the later run;
    the same run where it was done while that ran."""

    done: str
    how: Text
    result: str = UNKNOWN
    why: Text = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    as_promised: bool | None = None
    job_id: Text | None = None
    started_at: float | None = None
    judged_at: float | None = None


class Advised(Struct, frozen=True, kw_only=True):
    """One piece of advice. `kind`: what the table of outcomes counts it as. `target` and `key`: as of a
    recommendation's item; of a culprit `culprit` and its kind, of a finding `finding` and its code. `current` and
    `recommended`: values as text, empty for none. `nodes`: those of a culprit or finding. `codes`: the findings that
    the advice is to make go away. `incident`: the incident that it belongs to. `promised`: the gain that was told.
    `advised_at`: Unix seconds, when it was advised last. `outcome`: null as long as no later run tells."""

    kind: Text
    target: Text
    key: Text
    current: Text = ""
    recommended: Text = ""
    reason: Text = ""
    nodes: tuple[Text, ...] = ()
    codes: tuple[Text, ...] = ()
    incident: int | None = None
    promised: Gain = Gain("rule")
    advised_at: float | None = None
    outcome: Outcome | None = None

    @property
    def name(self) -> tuple[str, str, str, tuple[str, ...]]:
        """Returns what tells it from other advice for the same run."""
        return self.kind, self.target, self.key, self.nodes


class RunOutcomes(Struct, frozen=True, kw_only=True):
    """The advice for a run, and what became of it. `owner`: the uid of the job's user, -1 where it is not known.
    The run began at `started_at` (Unix seconds; 0: not known), and was looked at last at `made_at`."""

    owner: int
    job_id: str
    script: str
    world_size: int
    started_at: float
    made_at: float
    advised: tuple[Advised, ...] = ()


class AdviceHistory(Struct, frozen=True):
    """The state of the record, whether what is advised is kept: `state` and `reason` as of the incidents' history;
    `file` where files or a database were read."""

    state: str
    reason: str = ""


class SeenRun(NamedTuple):
    """A run as its advice is judged by it. `findings`: code and node. `judged_nodes`: those whose checks answered: of
    others it is not known whether a finding went."""

    digest: Digest
    findings: frozenset[tuple[str, str]] = frozenset()
    judged_nodes: frozenset[str] = frozenset()


class KindOutcomes(Struct, frozen=True, kw_only=True):
    """The record of one kind of advice. `advised`: that many times; `done`, `not_done` and `not_known`: whether
    it was done, where a later run told; `waiting`: no later run yet. Of those done: `gained`, `no_difference`, `lost`,
    and `not_comparable`. `as_promised`: of those measured, how many were within the gain that was promised, `promised`
    of how many."""

    kind: Text
    advised: int = 0
    waiting: int = 0
    done: int = 0
    not_done: int = 0
    not_known: int = 0
    gained: int = 0
    no_difference: int = 0
    lost: int = 0
    not_comparable: int = 0
    promised: int = 0
    as_promised: int = 0


class AdviceDocument(Struct, frozen=True, kw_only=True):
    """`laggard.advice/1`: what was advised of runs, the newest first, what became of it, and how often each kind of
    advice was right. `kinds`: of all that is kept, whatever was asked for. `now`: when this was written, Unix
    seconds."""

    runs: tuple[RunOutcomes, ...]
    kinds: tuple[KindOutcomes, ...]
    now: float
    history: AdviceHistory
    schema: str = ADVICE_SCHEMA
