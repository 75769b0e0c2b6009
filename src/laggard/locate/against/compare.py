"""Compares a run with an earlier one of the same program by their digests: which part of a step takes longer, by how
much, and where; whether the two can be compared at all, and what else changed between them. Pure.

A step is own time, transfers, and waiting for others. The first two are compared, and waiting is nobody's cause: where
all ranks wait longer in an operation, it is told where its transfers take longer, which is what even the rank that
comes last is blocked (links/channels.py). All parts are quantities of one kind, with an estimate of each run, and one
rule says which have changed: as a verdict on ranks does, by more than chance explains in one of ERRORS comparisons, and
by MIN_COST of the step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from laggard.kit.constants import SCRIPT_PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import counted, seconds_text
from laggard.locate.against.digest import NOTHING
from laggard.locate.links.raised import CHANNEL_COST_RATIO
from laggard.locate.shares import ALIKE, HALF, MIN_COST
from laggard.locate.slow.noise import errors_beyond
from laggard.locate.slow.steps import MIN_STEPS
from laggard.locate.slow.tested import DOUBTED_COST, ERRORS
from laggard.model import MAX_NAMED_RANKS, Note, Verdict
from laggard.rankfile.fact_names import members_of, parse_runs
from laggard.wire.digest import IN_FEW_STEPS, Change, Comparison, Difference, Digest, DigestRow, Estimate

INTERVAL_CONFIDENCE = 0.95
"""The share of the interval that is told."""

_WORLD = 1 << 20


class Quantity(NamedTuple):
    """What is compared: a part of the step, or all of it, by an estimate of each run. `about`: which, as fields of its
    Change."""

    about: Mapping[str, Any]
    before: Estimate
    now: Estimate

    @property
    def seconds(self) -> float:
        return self.now.seconds - self.before.seconds

    @property
    def error(self) -> float:
        return math.hypot(self.before.error, self.now.error)

    def beyond(self, seconds: float) -> Quantity:
        """The same beside a run before in which it took so much longer."""
        return self._replace(before=Estimate(self.before.seconds + seconds, self.before.error))

    def change(self, asked: Asked, **about: Any) -> Change:
        """`about`: other fields of the Change than those that it has already."""
        half = asked.interval * self.error
        return Change(
            before_seconds=_round(self.before.seconds),
            now_seconds=_round(self.now.seconds),
            seconds=_round(self.seconds),
            low_seconds=_round(self.seconds - half),
            high_seconds=_round(self.seconds + half),
            ratio=_round(self.seconds / self.before.seconds) if self.before.seconds > 0 else None,
            **{**self.about, **about},
        )


class Asked(NamedTuple):
    """What a change has to be: of so many standard errors, and so many seconds a step. `interval`: half of the interval
    that is told, in standard errors."""

    errors: float
    seconds: float
    interval: float

    @classmethod
    def of(cls, before: Digest, now: Digest) -> Asked:
        """Each part is tested, in all ranks and in each row."""
        tests = (len(now.phases) + 1) * (len(now.rows) + 1) + len(now.operations)
        freedom = min(before.steps, now.steps)
        seconds = MIN_COST * before.step.seconds
        return cls(errors_beyond(ERRORS / tests, freedom), seconds, errors_beyond(1 - INTERVAL_CONFIDENCE, freedom))

    def least(self, quantity: Quantity) -> float:
        """The least change that counts."""
        return max(self.errors * quantity.error, self.seconds)

    def has(self, quantity: Quantity) -> bool:
        return abs(quantity.seconds) > self.least(quantity)


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _sum(found: Iterable[Estimate]) -> Estimate:
    told = [*found]
    return Estimate(sum(each.seconds for each in told), math.hypot(*(each.error for each in told)))


def compare(before: Digest, now: Digest, against: str) -> Comparison:
    """The run `now` beside the run `before`, which is called `against`."""
    unlike, short = not_alike(before, now), (*_too_short(before, "the run before"), *_too_short(now, "this run"))
    found = Comparison(
        verdict=Verdict.UNKNOWN, job_id=now.job_id, against=against, step=None, not_alike=unlike,
        differences=differences(before, now), notes=short,
    )  # fmt: skip
    if unlike or short:
        return found
    asked, phases = Asked.of(before, now), [*_phases(before, now)]
    nodes = Counter(row.node for row in now.rows if row.node)
    changes = [change for phase in phases for change in phase.changes(asked, nodes)]
    of_transfers = asked._replace(seconds=CHANNEL_COST_RATIO * before.step.seconds)
    changes += [each.change(asked) for each in _transfers(before, now, of_transfers) if of_transfers.has(each)]
    # A step is as long as that of its slowest rank, and so becomes longer with noise alone.
    unexplained = asked._replace(seconds=DOUBTED_COST * before.step.seconds)
    step = _step_change(before, now, asked if changes else unexplained)
    waiting = _waiting_notes(step, changes, whole=all(each.ranks_seen >= each.world_size for each in (before, now)))
    is_longer = step.seconds > 0 if step.share else any(each.seconds > 0 for each in changes)
    if step.share:
        changes = [structs.replace(each, share=round(each.seconds / step.seconds, 3)) for each in changes]
    told = Verdict.UNKNOWN if waiting and not changes else Verdict.OK
    return structs.replace(
        found,
        verdict=Verdict.FAIL if is_longer and changes else told,
        step=step if changes else structs.replace(step, share=None),
        changes=tuple(sorted(changes, key=lambda each: -abs(each.seconds))),
        smallest_seconds={each.name: _round(asked.least(each.common)) for each in phases if each.is_in_every_step},
        notes=(*waiting, *_notes(before, now)),
    )


def _waiting_notes(step: Change, changes: Sequence[Change], whole: bool) -> tuple[Note, ...]:
    """The note on a step that changed for certain, where parts explain less than half of it. What is left is waiting
    for one another, which is nobody's cause; where not all ranks were seen (`whole`), others may be waited for."""
    left = step.seconds - sum(each.seconds for each in changes)
    if not step.share or 2 * left / step.seconds < 1:
        return ()
    by_turns = "in which no rank is the last more often than before: as where something else takes their CPUs"
    whom = f"one another, {by_turns}" if whole else "other ranks, and whom they wait for may be one that was not seen"
    return (Note("waiting", f"{'+' if left > 0 else '-'}{seconds_text(abs(left))} of a step is waiting for {whom}"),)


def _step_change(before: Digest, now: Digest, asked: Asked) -> Change:
    """The change of the whole step: of the usual one, and of what few have, each where it is certain; its `share` is
    null where neither is."""
    both = [Quantity({}, before.step, now.step), Quantity({}, before.rare, now.rare)]
    certain = [each for each in both if asked.has(each)]
    told = certain or both[:1]
    old, new = _sum(each.before for each in told), _sum(each.now for each in told)
    others = before.step.seconds + before.rare.seconds - old.seconds
    whole = (Estimate(each.seconds + others, each.error) for each in (old, new))
    return Quantity({"kind": "step", "share": 1.0 if certain else None}, *whole).change(asked)


def _too_short(digest: Digest, which: str) -> Iterator[Note]:
    if digest.steps < MIN_STEPS:
        text = f"{which} has {counted(digest.steps, 'step')} after the warm-up, {MIN_STEPS} are needed to compare"
        yield Note("too_few_steps", text)


def _notes(before: Digest, now: Digest) -> Iterator[Note]:
    for digest, which in ((now, "this run"), (before, "the run before")):
        if abs(digest.drift - 1) > ALIKE:
            text = f"{which} was not even: its last third took {digest.drift:.2f} times as long as its first"
            yield Note("drift", text)
        if digest.ranks_seen < digest.world_size:
            yield Note("partial", f"seen: {digest.ranks_seen} of {counted(digest.world_size, 'rank')} of {which}")


class _Phase(NamedTuple):
    """A phase in both runs. `common`: that of the ranks in the middle; `rows`: of the rows that both runs have."""

    name: str
    common: Quantity
    rows: Mapping[DigestRow, Quantity]

    @property
    def is_in_every_step(self) -> bool:
        return not self.name.endswith(IN_FEW_STEPS) and self.name not in SCRIPT_PHASES

    def changes(self, asked: Asked, nodes: Mapping[str, int]) -> Iterator[Change]:
        """The change of all ranks, and those of some beyond it: of the ones that take longer, and of the ones that take
        shorter. `nodes`: how many rows each node has in this run."""
        in_all = 0.0
        if asked.has(self.common):
            yield self.common.change(asked)
            in_all = self.common.seconds
        is_one_kind = len({row.alike for row in self.rows}) == 1
        rows = {row: each.beyond(in_all) for row, each in self.rows.items() if not (is_one_kind and row.whole)}
        for sign in (1, -1) if len(rows) > 1 else ():
            hit = [row for row, each in rows.items() if sign * each.seconds > asked.least(each)]
            if hit:
                typical = sorted((rows[row] for row in hit), key=lambda each: each.seconds)[len(hit) // 2]
                of_node = Counter(row.node for row in hit if row.node)
                whole_nodes = tuple(node for node, count in of_node.items() if count >= nodes.get(node, 0))
                yield typical.change(asked, ranks=_named_ranks(row.ranks for row in hit), nodes=whole_nodes)


def _phases(before: Digest, now: Digest) -> Iterator[_Phase]:
    """Each phase of both runs."""
    matched = _matched_rows(before, now)
    for name in dict.fromkeys((*before.phases, *now.phases)):
        about = {"kind": "phase", "phase": name}
        rows = {told: Quantity(about, _own(before, one, name), _own(now, it, name)) for told, one, it in matched}
        yield _Phase(name, Quantity(about, _usual(before, name), _usual(now, name)), rows)


def _matched_rows(before: Digest, now: Digest) -> Sequence[tuple[DigestRow, DigestRow, DigestRow]]:
    """The rows of the same ranks, as told, before and now; none where most ranks have none in both runs. A node that
    one run's digest does not name was there like all others that do its work."""
    old, new = ({row.ranks: row for row in it.rows} for it in (before, now))
    usual, usual_now = ({row.alike: row for row in it.rows if row.whole} for it in (before, now))
    matched = []
    for ranks in dict.fromkeys((*new, *old)):
        told = new.get(ranks) or old[ranks]
        one, other = old.get(ranks) or usual.get(told.alike), new.get(ranks) or usual_now.get(told.alike)
        if one and other:
            matched.append((told, one, other))
    return matched if 2 * len(matched) > max(len(old), len(new)) else ()


def _own(digest: Digest, row: DigestRow, phase: str) -> Estimate:
    return row.own[digest.phases.index(phase)] if phase in digest.phases else NOTHING


def _usual(digest: Digest, phase: str) -> Estimate:
    """The seconds and the error in the middle of all ranks: the errors of rows beside each other are not
    independent."""
    rows = [row for row in digest.rows if row.whole] or digest.rows
    found = [_own(digest, row, phase) for row in rows]
    seconds, errors = sorted(each.seconds for each in found), sorted(each.error for each in found)
    return Estimate(seconds[(len(found) - 1) // 2], errors[len(found) // 2]) if found else NOTHING


def _named_ranks(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The first MAX_NAMED_RANKS of the ranks that `rows` have, as a digest's row has its own."""
    runs = (run for numbers in rows for run in parse_runs(list(numbers), _WORLD))
    found = {rank for run in runs for rank in members_of([run._replace(length=min(run.length, MAX_NAMED_RANKS))])}
    return tuple(sorted(found)[:MAX_NAMED_RANKS])


def _transfers(before: Digest, now: Digest, asked: Asked) -> Iterator[Quantity]:
    """The transfers of each operation: in the group in the middle, and where they did not change there, in the slowest
    of several. Where one of the runs tells no operations, those of all collectives together."""
    if not (before.operations and now.operations):
        if before.waits and now.waits:
            yield Quantity({"kind": "collectives"}, before.waits, now.waits)
        return
    old, new = (grouped(it.operations, lambda each: (each.op, each.role, each.members)) for it in (before, now))
    for op, role, members in dict.fromkeys((*old, *new)):
        sides = [side.get((op, role, members), []) for side in (old, new)]
        told = (sides[1] or sides[0])[0]
        size = told.size_bytes if max(map(len, sides)) == 1 else None
        about = {"kind": "operation", "op": op, "role": role, "members": members, "size_bytes": size}
        usual = Quantity(about, *(_sum(each.usual for each in side) for side in sides))
        if asked.has(usual) or told.groups == 1:
            yield usual
        else:
            slowest = {**about, "ranks": _named_ranks([told.slowest_ranks])}
            yield Quantity(slowest, *(_sum(each.slowest for each in side) for side in sides))


# What is not as it was: whether two runs can be compared at all, and what else changed between them.

_FIRST: Final = ("torch", "nccl", "cuda", "hip", "driver", "gpu", "kernel", "os", "image", "python", "deepspeed")
"""The names that are told first: an image's own versions."""


def not_alike(before: Digest, now: Digest) -> tuple[Difference, ...]:
    """Why the two do not do the same work: script, ranks, groups, collectives a step. What one does not tell counts for
    nothing."""
    rows = (
        Difference("script", before.script or "", now.script or ""),
        Difference("world size", str(before.world_size), str(now.world_size)),
        Difference("groups", ", ".join(before.layout), ", ".join(now.layout)),
    )
    told = (row for row in rows if row.before and row.now and row.before != row.now)
    return (*told, *_numbers(before.calls, now.calls, "{:.3g}".format, HALF))


def _numbers(
    before: Mapping[str, float],
    now: Mapping[str, float],
    text: Callable[[float], str],
    counted_from: float = 0.0,
) -> Iterator[Difference]:
    """The numbers a step that are not ALIKE, where both runs have some. Of small numbers, as of what
    comes now and then, a difference below half of `counted_from` is none."""
    for name in sorted(before.keys() | now.keys()) if before and now else ():
        old, new = before.get(name, 0.0), now.get(name, 0.0)
        most = max(old, new)
        if most >= counted_from and abs(new - old) > max(ALIKE * most, counted_from / 2):
            yield Difference(f"{name} a step", text(old), text(new))


def differences(before: Digest, now: Digest) -> tuple[Difference, ...] | None:
    """Versions, variables, settings, sizes and nodes that are not as they were; None where neither run tells of the
    first three."""
    work = [{"elements of input": it.work} if it.work else {} for it in (before, now)]
    old, new = _bytes(before), _bytes(now)
    both = old.keys() & new.keys()  # a digest has no room for all
    sizes = (
        *_numbers(work[0], work[1], "{:,.0f}".format),
        *_numbers({name: old[name] for name in both}, {name: new[name] for name in both}, size_text),
        *_nodes(before, now),
    )
    if not before.environment or not now.environment:
        return sizes or None
    names = sorted(
        before.environment.keys() | now.environment.keys(),
        key=lambda it: (_FIRST.index(it) if it in _FIRST else len(_FIRST), it),
    )
    rows = (Difference(name, before.environment.get(name, ""), now.environment.get(name, "")) for name in names)
    return (*(row for row in rows if row.before != row.now), *sizes)


def _bytes(digest: Digest) -> dict[str, float]:
    """What an operation of a group moves in a step."""
    of_kind = grouped(digest.operations, lambda each: f"bytes of {each.op} in {each.role} of {each.members}")
    return {name: sum(each.bytes for each in operations) for name, operations in of_kind.items()}


def size_text(size: float) -> str:
    """`4.19 MB`: as many digits as tell two sizes apart that are not ALIKE."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"


def _nodes(before: Digest, now: Digest) -> Iterator[Difference]:
    """The nodes that left and came; of a very large job those that the digests name. Of a run of which not all ranks
    were seen no node is known to be missing."""
    left, new = sorted(set(before.nodes) - set(now.nodes)), sorted(set(now.nodes) - set(before.nodes))
    left = left if now.ranks_seen >= now.world_size else []
    new = new if before.ranks_seen >= before.world_size else []
    if before.nodes and now.nodes and (left or new):
        yield Difference("nodes", ", ".join(left), ", ".join(new))
