"""Compares a run with an earlier one of the same program by their digests: which part of a step takes longer, by how
much, and where; whether the two can be compared at all, and what else changed between them. Pure.

A step is own time, transfers, and waiting for others. The first two are compared, and waiting is nobody's cause: where
all ranks wait longer in an operation, it is told where its transfers take longer, which is what even the rank that
comes last is blocked (links/channels.py). A part counts as changed where its change is DECISION_ERRORS of its standard
errors, which hold what two runs of one program may differ by (digest.py), and more than a trifle of the step.
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
from laggard.locate.against.digest import COUNTED_CALLS, MIN_STEPS, NOTHING, size_class
from laggard.model import MAX_NAMED_RANKS, Note, Verdict
from laggard.rankfile.fact_names import members_of, parse_runs
from laggard.wire.digest import (
    IN_FEW_STEPS,
    Change,
    Comparison,
    Difference,
    Digest,
    DigestOperation,
    DigestRow,
    Estimate,
)

DECISION_ERRORS: Final = 4.0
"""The standard errors that a change has to have: of Student's t with 8 degrees of freedom, as two runs of ten blocks
have after trimming, 0.4 % are beyond, and a comparison tests some ten parts."""

PLACE_ERRORS: Final = 5.0
"""The same for some ranks alone: there are more of them to be wrong about."""

INTERVAL_ERRORS: Final = 2.3
"""Half of a 95 % interval, in standard errors: Student's t with 8 degrees of freedom."""

MIN_STEP_SHARE: Final = 0.005
"""The least change of a part, as a share of the step. Our own choice: less is not worth a look."""

MIN_UNEXPLAINED_SHARE: Final = 0.05
"""The least change of the step as a whole where no part of it has changed. Our own choice: a step is as long as that of
its slowest rank, and so becomes longer with noise alone."""

MOSTLY: Final = 0.5
"""The share of the step's change from which on what no part explains is told."""

MIN_PLACE_SHARE: Final = 0.01
"""The least change of some ranks alone, as a share of the step."""

ALL_SHARE: Final = 0.8
"""The share of the rows from which on a change is one of all ranks."""

PLACE_SPREAD: Final = 3.0
"""The ratio that the change of rows which changed has at least to the spread of those that did not."""

QUARTER_TO_SIGMA: Final = 3.1
"""A standard deviation over the lower quartile of absolute values, for normal data."""

WORTH_TELLING: Final = 0.1
"""The share of the largest change below which another is left out."""

DRIFT_RATIO: Final = 0.1
"""The change of the usual step within a run from which on its reader is told."""

_WORLD = 1 << 20


class _Bar(NamedTuple):
    """What a change has to be to count: `errors` of its standard errors, and a `share` of the step."""

    errors: float
    share: float


_ALL: Final = _Bar(DECISION_ERRORS, MIN_STEP_SHARE)
_SOME: Final = _Bar(PLACE_ERRORS, MIN_PLACE_SHARE)


class _Pair(NamedTuple):
    """What a part of the step takes in both runs."""

    before: Estimate
    now: Estimate

    @property
    def seconds(self) -> float:
        return self.now.seconds - self.before.seconds

    @property
    def error(self) -> float:
        return math.hypot(self.before.error, self.now.error)

    @property
    def _ratio_errors(self) -> float:
        """The logarithm of the ratio, in its standard errors by the delta method; 0.0 where there is no ratio."""
        if self.before.seconds <= 0 or self.now.seconds <= 0:
            return 0.0
        error = math.hypot(self.before.error / self.before.seconds, self.now.error / self.now.seconds)
        return abs(math.log(self.now.seconds / self.before.seconds)) / max(error, 1e-9)

    def least(self, bar: _Bar, whole: float) -> float:
        """The least change that counts, in seconds of a step of `whole` seconds."""
        return max(bar.errors * self.error, bar.share * whole)

    def is_certain(self, bar: _Bar, whole: float) -> bool:
        """Whether the two differ, by their difference or by their ratio: what others take of a machine makes long times
        as much more uncertain."""
        least = bar._replace(errors=INTERVAL_ERRORS) if self._ratio_errors > bar.errors else bar
        return abs(self.seconds) > self.least(least, whole)

    def change(self, kind: str, shift: float = 0.0, **about: Any) -> Change:
        """`shift`: what of the change belongs to another one, in seconds. `about`: other fields of the Change."""
        seconds, half = self.seconds - shift, INTERVAL_ERRORS * self.error
        return Change(
            kind=kind,
            before_seconds=_round(self.before.seconds),
            now_seconds=_round(self.now.seconds),
            seconds=_round(seconds),
            low_seconds=_round(seconds - half),
            high_seconds=_round(seconds + half),
            ratio=_round(seconds / self.before.seconds) if self.before.seconds > 0 else None,
            **about,
        )


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _sum(found: Iterable[Estimate]) -> Estimate:
    told = [*found]
    return Estimate(sum(each.seconds for each in told), math.hypot(*(each.error for each in told)))


def _middle(found: Sequence[Estimate]) -> Estimate:
    """The estimate in the middle, with the error in the middle: that of rows beside each other is not independent."""
    seconds, errors = sorted(each.seconds for each in found), sorted(each.error for each in found)
    return Estimate(seconds[(len(found) - 1) // 2], errors[len(found) // 2]) if found else NOTHING


def _middle_pair(pairs: Sequence[_Pair]) -> _Pair:
    """The pair in the middle by its change, of two the one that changed less, with the errors in the middle."""
    ordered = sorted(pairs, key=lambda pair: pair.seconds)
    chosen = min(ordered[(len(pairs) - 1) // 2 : len(pairs) // 2 + 1], key=lambda pair: abs(pair.seconds))
    before, now = (_middle(side).error for side in zip(*pairs, strict=True))
    return _Pair(Estimate(chosen.before.seconds, before), Estimate(chosen.now.seconds, now))


def compare(before: Digest, now: Digest, against: str) -> Comparison:
    """The run `now` beside the run `before`, which is called `against`."""
    unlike, short = not_alike(before, now), (*_too_short(before, "the run before"), *_too_short(now, "this run"))
    found = Comparison(
        verdict=Verdict.UNKNOWN, job_id=now.job_id, against=against, step=None, not_alike=unlike,
        differences=differences(before, now), notes=short,
    )  # fmt: skip
    if unlike or short:
        return found
    whole, phases = before.step.seconds, [*_phases(before, now)]
    nodes = Counter(row.node for row in now.rows if row.node)
    parts = [change for phase in phases for change in phase.changes(whole, nodes)]
    parts += _operation_changes(before, now, whole)
    largest = max((abs(each.seconds) for each in parts), default=0.0)
    kept = [each for each in parts if abs(each.seconds) >= WORTH_TELLING * largest]
    step = _step_change(before, now, MIN_STEP_SHARE if kept else MIN_UNEXPLAINED_SHARE)
    waiting = _waiting_notes(step, kept, whole=all(each.ranks_seen >= each.world_size for each in (before, now)))
    is_longer = step.seconds > 0 if step.share else any(each.seconds > 0 for each in kept)
    if step.share:
        kept = [structs.replace(each, share=round(each.seconds / step.seconds, 3)) for each in kept]
    told = Verdict.UNKNOWN if waiting and not kept else Verdict.OK
    return structs.replace(
        found,
        verdict=Verdict.FAIL if is_longer and kept else told,
        step=step if kept else structs.replace(step, share=None),
        changes=tuple(sorted(kept, key=lambda each: -abs(each.seconds))),
        smallest_seconds={
            phase.name: _round(phase.all.least(_ALL, whole)) for phase in phases if phase.is_in_every_step
        },
        notes=(*waiting, *_notes(before, now)),
    )


def _waiting_notes(step: Change, changes: Sequence[Change], whole: bool) -> tuple[Note, ...]:
    """The note on a step that changed for certain, where parts explain little of it. What is left is waiting for one
    another, which is nobody's cause; where not all ranks were seen (`whole`), others may be waited for."""
    left = step.seconds - sum(each.seconds for each in changes)
    if not step.share or left / step.seconds < MOSTLY:
        return ()
    by_turns = "in which no rank is the last more often than before: as where something else takes their CPUs"
    whom = f"one another, {by_turns}" if whole else "other ranks, and whom they wait for may be one that was not seen"
    return (Note("waiting", f"{'+' if left > 0 else '-'}{seconds_text(abs(left))} of a step is waiting for {whom}"),)


def _step_change(before: Digest, now: Digest, share: float) -> Change:
    """The change of the whole step: of the usual one, and of what few have, each where it is certain; its `share` is
    null where neither is."""
    pairs = [_Pair(before.step, now.step), _Pair(before.rare, now.rare)]
    certain = [pair for pair in pairs if pair.is_certain(_Bar(DECISION_ERRORS, share), before.step.seconds)]
    told = certain or pairs[:1]
    whole = before.step.seconds + before.rare.seconds
    old, new = _sum(pair.before for pair in told), _sum(pair.now for pair in told)
    moved = _Pair(Estimate(whole, old.error), Estimate(whole + new.seconds - old.seconds, new.error))
    return moved.change("step", share=1.0 if certain else None)


def _too_short(digest: Digest, which: str) -> Iterator[Note]:
    if digest.steps < MIN_STEPS:
        text = f"{which} has {counted(digest.steps, 'step')} after the warm-up, {MIN_STEPS} are needed to compare"
        yield Note("too_few_steps", text)


def _notes(before: Digest, now: Digest) -> Iterator[Note]:
    for digest, which in ((now, "this run"), (before, "the run before")):
        if abs(digest.drift - 1) > DRIFT_RATIO:
            text = f"{which} was not even: its last third took {digest.drift:.2f} times as long as its first"
            yield Note("drift", text)
        if digest.ranks_seen < digest.world_size:
            yield Note("partial", f"seen: {digest.ranks_seen} of {counted(digest.world_size, 'rank')} of {which}")


class _Phase(NamedTuple):
    """A phase in both runs. `all`: the middle of all rows of each run; `pairs`: the rows of the same ranks, by these,
    none where most ranks have none in both runs."""

    name: str
    all: _Pair
    pairs: Mapping[DigestRow, _Pair]

    @property
    def is_in_every_step(self) -> bool:
        return not self.name.endswith(IN_FEW_STEPS) and self.name not in SCRIPT_PHASES

    def changes(self, whole: float, nodes: Mapping[str, int]) -> Iterator[Change]:
        """`whole`: the seconds of a step. `nodes`: how many rows each node has in this run."""
        common = self._common(whole)
        if common is not None:
            yield common.change("phase", phase=self.name)
        yield from self._of_some_ranks(common.seconds if common else 0.0, whole, nodes)

    def _common(self, whole: float) -> _Pair | None:
        """The change of nearly all ranks; None: there is none for certain. Where rows cannot be matched, all of each
        run count as one."""
        of_kinds = [pair for row, pair in self.pairs.items() if row.whole]
        pairs = of_kinds or [*self.pairs.values()] or [self.all]
        found = _middle_pair(pairs)
        if not found.is_certain(_ALL, whole):
            return None
        like = sum(pair.seconds / found.seconds > 0.5 for pair in pairs)
        return found if like >= ALL_SHARE * len(pairs) else None

    def _of_some_ranks(self, common: float, whole: float, nodes: Mapping[str, int]) -> Iterator[Change]:
        """The changes of some ranks alone, beyond what is `common` to all: one for those that take longer, and one for
        those that take shorter."""
        is_one_kind = len({row.alike for row in self.pairs}) == 1
        pairs = {row: pair for row, pair in self.pairs.items() if not (is_one_kind and row.whole)}
        if len(pairs) < 2:
            return
        rest = sorted(abs(pair.seconds - common) for pair in pairs.values())
        spread = PLACE_SPREAD * QUARTER_TO_SIGMA * rest[(len(rest) - 1) // 4]
        least = {row: max(pair.least(_SOME, whole), spread) for row, pair in pairs.items()}
        for sign in (1, -1):
            hit = [row for row, pair in pairs.items() if sign * (pair.seconds - common) > least[row]]
            if hit:
                typical = sorted((pairs[row] for row in hit), key=lambda pair: pair.seconds)[len(hit) // 2]
                of_node = Counter(row.node for row in hit if row.node)
                whole_nodes = tuple(node for node, count in of_node.items() if count >= nodes.get(node, 0))
                ranks = _named_ranks(row.ranks for row in hit)
                yield typical.change("phase", common, phase=self.name, ranks=ranks, nodes=whole_nodes)


def _phases(before: Digest, now: Digest) -> Iterator[_Phase]:
    """Each phase of both runs. A node that one run's digest does not name was there like all others that do its
    work."""
    old, new = ({row.ranks: row for row in it.rows} for it in (before, now))
    usual, usual_now = ({row.alike: row for row in it.rows if row.whole} for it in (before, now))
    matched = []
    for ranks in dict.fromkeys((*new, *old)):
        told = new.get(ranks) or old[ranks]
        one, other = old.get(ranks) or usual.get(told.alike), new.get(ranks) or usual_now.get(told.alike)
        if one and other:
            matched.append((told, one, other))
    rows = matched if 2 * len(matched) > max(len(old), len(new)) else ()
    for name in dict.fromkeys((*before.phases, *now.phases)):
        whole = _Pair(*(_middle([_own(it, row, name) for row in it.rows]) for it in (before, now)))
        yield _Phase(name, whole, {told: _Pair(_own(before, one, name), _own(now, it, name)) for told, one, it in rows})


def _own(digest: Digest, row: DigestRow, phase: str) -> Estimate:
    return row.own[digest.phases.index(phase)] if phase in digest.phases else NOTHING


def _named_ranks(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The first MAX_NAMED_RANKS of the ranks that `rows` have, as a digest's row has its own."""
    runs = (run for numbers in rows for run in parse_runs(list(numbers), _WORLD))
    found = {rank for run in runs for rank in members_of([run._replace(length=min(run.length, MAX_NAMED_RANKS))])}
    return tuple(sorted(found)[:MAX_NAMED_RANKS])


def _operation_changes(before: Digest, now: Digest, whole: float) -> Iterator[Change]:
    """Where one of the runs tells no operations, all collectives together."""
    if before.operations and now.operations:
        for old, new in _matched(before, now):
            yield from _operation_change(old, new, whole)
    elif before.waits and now.waits and (pair := _Pair(before.waits, now.waits)).is_certain(_ALL, whole):
        yield pair.change("collectives")


Operations = Sequence[DigestOperation]


def _matched(before: Digest, now: Digest) -> Iterator[tuple[Operations, Operations]]:
    """The operations of one kind by their sizes, where these are as they were; else all sizes together."""
    old, new = (grouped(it.operations, lambda each: (each.op, each.role, each.members)) for it in (before, now))
    for kind in dict.fromkeys((*old, *new)):
        sizes = [{size_class(each.size_bytes): each for each in side.get(kind, ())} for side in (old, new)]
        if sizes[0].keys() == sizes[1].keys():
            yield from (([sizes[0][size]], [sizes[1][size]]) for size in sizes[0])
        else:
            yield old.get(kind, ()), new.get(kind, ())


def _operation_change(old: Operations, new: Operations, whole: float) -> Iterator[Change]:
    """The change of an operation in the group in the middle, else in the slowest of several."""
    told = (new or old)[0]
    classes = {size_class(each.size_bytes) for each in (*old, *new)}
    size = told.size_bytes if len(old) == len(new) == len(classes) == 1 else None
    about: dict[str, Any] = {"op": told.op, "role": told.role, "members": told.members, "size_bytes": size}
    usual = _Pair(*(_sum(each.usual for each in side) for side in (old, new)))
    slowest = _Pair(*(_sum(each.slowest for each in side) for side in (old, new)))
    if usual.is_certain(_ALL, whole):
        yield usual.change("operation", **about)
    elif told.groups > 1 and slowest.is_certain(_SOME, whole):
        yield slowest.change("operation", ranks=_named_ranks([told.slowest_ranks]), **about)


# What is not as it was: whether two runs can be compared at all, and what else changed between them.

CALLS_RATIO: Final = 0.1
"""The share by which the number of an operation's collectives may differ: some come every few steps alone."""

WORK_RATIO: Final = 0.01
"""The share by which the elements of input may differ. Our own choice: what they cost is then below what is told."""

BYTES_RATIO: Final = 0.02
"""The share by which the bytes of an operation may differ. Our own choice: padding and last batches differ by less."""

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
    return (*told, *_numbers(before.calls, now.calls, CALLS_RATIO, "{:.3g}".format, COUNTED_CALLS))


def _numbers(
    before: Mapping[str, float],
    now: Mapping[str, float],
    ratio: float,
    text: Callable[[float], str],
    counted_from: float = 0.0,
) -> Iterator[Difference]:
    """The numbers a step that differ by more than `ratio`, where both runs have some. Of small numbers, as of what
    comes now and then, a difference below half of `counted_from` is none."""
    for name in sorted(before.keys() | now.keys()) if before and now else ():
        old, new = before.get(name, 0.0), now.get(name, 0.0)
        most = max(old, new)
        if most >= counted_from and abs(new - old) > max(ratio * most, counted_from / 2):
            yield Difference(f"{name} a step", text(old), text(new))


def differences(before: Digest, now: Digest) -> tuple[Difference, ...] | None:
    """Versions, variables, settings, sizes and nodes that are not as they were; None where neither run tells of the
    first three."""
    work = [{"elements of input": it.work} if it.work else {} for it in (before, now)]
    old, new = _bytes(before), _bytes(now)
    both = old.keys() & new.keys()  # a digest has no room for all
    sizes = (
        *_numbers(work[0], work[1], WORK_RATIO, "{:,.0f}".format),
        *_numbers({name: old[name] for name in both}, {name: new[name] for name in both}, BYTES_RATIO, size_text),
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
    """`4.19 MB`: as many digits as tell two sizes apart that differ by BYTES_RATIO."""
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
