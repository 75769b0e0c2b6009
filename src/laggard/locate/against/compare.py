"""Compares a run with an earlier one of the same program by their digests: which part of a step takes longer, by how
much, and where. Pure.

A step is own time, transfers, and waiting for others. The first two are compared, and waiting is nobody's cause: where
all ranks wait longer in an operation, it is told where its transfers take longer, which is what even the rank that
comes last is blocked (links/channels.py). A part counts as changed where its change is DECISION_ERRORS of its standard
errors, which hold what two runs of one program may differ by (estimate.py), and more than a trifle of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from laggard.kit.constants import SCRIPT_PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import counted, seconds_text
from laggard.locate.against.alike import differences, not_alike
from laggard.locate.against.estimate import MIN_STEPS
from laggard.model import MAX_NAMED_RANKS, Note, Verdict
from laggard.rankfile.fact_names import parse_runs
from laggard.wire.digest import IN_FEW_STEPS, Change, Comparison, Digest, DigestOperation, DigestRow, Estimate

_WORLD = 1 << 20


def ranks_of(row: DigestRow, most: int = MAX_NAMED_RANKS) -> Iterable[int]:
    """The first `most` ranks of a row."""
    left = most
    for run in parse_runs(list(row.ranks), _WORLD):
        for place in range(min(run.length, left)):
            yield run.first + place * run.stride
        left -= min(run.length, left)


def named_ranks(hit: Sequence[DigestRow], rows: Sequence[DigestRow]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ranks of the rows `hit`, MAX_NAMED_RANKS at most, and the nodes of which all of `rows` are among them."""
    ranks = sorted({rank for row in hit for rank in ranks_of(row)})[:MAX_NAMED_RANKS]
    those = {row.ranks for row in hit}
    nodes = dict.fromkeys(row.node for row in hit if row.node)
    whole = (node for node in nodes if all(row.ranks in those for row in rows if row.node == node))
    return tuple(ranks), tuple(name for name in whole if name)


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
"""The same for some ranks alone."""

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


def compare(before: Digest, now: Digest, against: str) -> Comparison:
    """The run `now` beside the run `before`, which is called `against`."""
    unlike = not_alike(before, now)
    short = [*_too_short(before, "the run before"), *_too_short(now, "this run")]
    if unlike or short:
        return Comparison(
            verdict=Verdict.UNKNOWN, job_id=now.job_id, against=against, step=None, not_alike=unlike,
            differences=differences(before, now), notes=tuple(short),
        )  # fmt: skip
    whole = before.step.seconds
    found = [*_phase_changes(before, now, whole), *_operation_changes(before, now, whole)]
    largest = max((abs(each.seconds) for each in found), default=0.0)
    kept = [each for each in found if abs(each.seconds) >= WORTH_TELLING * largest]
    step = _step_change(before, now, MIN_STEP_SHARE if kept else MIN_UNEXPLAINED_SHARE)
    waiting = _waiting_notes(step, kept, whole=all(each.ranks_seen >= each.world_size for each in (before, now)))
    if not kept:
        step = _with_share(step, None)
    changes = [_with_share(each, step.seconds if step.share else None) for each in kept]
    is_longer = step.seconds > 0 if step.share else any(each.seconds > 0 for each in changes)
    told = Verdict.UNKNOWN if waiting and not kept else Verdict.OK
    return Comparison(
        verdict=Verdict.FAIL if is_longer and changes else told,
        job_id=now.job_id,
        against=against,
        step=step,
        changes=tuple(sorted(changes, key=lambda each: -abs(each.seconds))),
        differences=differences(before, now),
        smallest_seconds=_smallest(before, now, whole),
        notes=(*waiting, *_notes(before, now)),
    )


def _waiting_notes(step: Change, changes: Sequence[Change], whole: bool) -> tuple[Note, ...]:
    """The note on a step that changed for certain, where parts explain little of it. What is left is waiting for one
    another, which is nobody's cause; where not all ranks were seen (`whole`), others may be waited for."""
    left = step.seconds - sum(each.seconds for each in changes)
    if not step.share or left / step.seconds < MOSTLY:
        return ()
    what = f"{'+' if left > 0 else '-'}{seconds_text(abs(left))} of a step is waiting for"
    if not whole:
        return (Note("waiting", f"{what} other ranks, and whom they wait for may be one that was not seen"),)
    text = (
        f"{what} one another, in which no rank is the last more often than before: as where something else takes their"
        " CPUs now and then"
    )
    return (Note("waiting", text),)


def _step_change(before: Digest, now: Digest, share: float) -> Change:
    """The change of the whole step: of the usual one, and of what few have, each where it is certain; its `share` is
    null where neither is."""
    pairs = [(before.step, now.step), (before.rare, now.rare)]
    certain = [pair for pair in pairs if _is_certain(*pair, before.step.seconds, DECISION_ERRORS, share)]
    old = Estimate(sum(one.seconds for one, _ in pairs), _together_error(one for one, _ in certain or pairs[:1]))
    seconds = sum(other.seconds - one.seconds for one, other in certain or pairs[:1])
    new = Estimate(old.seconds + seconds, _together_error(other for _, other in certain or pairs[:1]))
    change = _change(old, new, kind="step")
    return change if certain else _with_share(change, None)


def _together_error(found: Iterable[Estimate]) -> float:
    return math.hypot(*(each.error for each in found))


def is_changed(comparison: Comparison) -> bool:
    """Whether the step as a whole takes longer or shorter for certain."""
    return comparison.step is not None and comparison.step.share is not None


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


def _error(before: Estimate, now: Estimate) -> float:
    return math.hypot(before.error, now.error)


def _limit(before: Estimate, now: Estimate, whole: float, errors: float, share: float) -> float:
    """The least change that counts, in seconds a step."""
    return max(errors * _error(before, now), share * whole)


def _is_certain(before: Estimate, now: Estimate, whole: float, errors: float, share: float) -> bool:
    """Whether the two differ, by their difference or by their ratio: what others take of a machine makes long times
    as much more uncertain."""
    change = abs(now.seconds - before.seconds)
    return change > _limit(before, now, whole, errors, share) or (
        change > _limit(before, now, whole, INTERVAL_ERRORS, share) and _errors_of_ratio(before, now) > errors
    )


def _errors_of_ratio(before: Estimate, now: Estimate) -> float:
    """The logarithm of the ratio, in its standard errors by the delta method; 0.0 where there is no ratio."""
    if before.seconds <= 0 or now.seconds <= 0:
        return 0.0
    error = math.hypot(before.error / before.seconds, now.error / now.seconds)
    return abs(math.log(now.seconds / before.seconds)) / max(error, 1e-9)


def _change(before: Estimate, now: Estimate, *, kind: str, shift: float = 0.0, **about: Any) -> Change:
    """`shift`: what of the change belongs to another one, in seconds."""
    seconds, half = now.seconds - before.seconds - shift, INTERVAL_ERRORS * _error(before, now)
    return Change(
        kind=kind,
        before_seconds=_round(before.seconds),
        now_seconds=_round(now.seconds),
        seconds=_round(seconds),
        low_seconds=_round(seconds - half),
        high_seconds=_round(seconds + half),
        ratio=_round(seconds / before.seconds) if before.seconds > 0 else None,
        share=1.0,
        **about,
    )


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _with_share(change: Change, of: float | None) -> Change:
    return structs.replace(change, share=None if not of else round(change.seconds / of, 3))


NOTHING: Final = Estimate(0.0, 0.0)


class _Pair(NamedTuple):
    """A row in both runs, in one phase."""

    row: DigestRow
    before: Estimate
    now: Estimate

    @property
    def seconds(self) -> float:
        return self.now.seconds - self.before.seconds


def _phase_changes(before: Digest, now: Digest, whole: float) -> Iterator[Change]:
    for phase in dict.fromkeys((*before.phases, *now.phases)):
        pairs = _pairs(before, now, phase)
        common = _common(pairs, whole)
        if common is not None:
            yield _change(common.before, common.now, kind="phase", phase=phase)
        yield from _some_ranks(pairs, common.seconds if common else 0.0, whole, phase, now.rows)


def _pairs(before: Digest, now: Digest, phase: str) -> list[_Pair]:
    """The rows of the same ranks in both runs; where most have none, all of each run as one. A node that one run's
    digest does not name was there like all others that do its work."""
    old, new = ({row.ranks: row for row in it.rows} for it in (before, now))
    usual = [{row.alike: row for row in it.rows if row.whole} for it in (before, now)]
    pairs = []
    for ranks in dict.fromkeys((*new, *old)):
        told = new.get(ranks) or old[ranks]
        one, other = old.get(ranks) or usual[0].get(told.alike), new.get(ranks) or usual[1].get(told.alike)
        if one and other:
            pairs.append(_Pair(told, _own(before, one, phase), _own(now, other, phase)))
    if 2 * len(pairs) > max(len(old), len(new)):
        return pairs
    whole = DigestRow((), None, 0, ())
    return [_Pair(whole, *(_middle([_own(it, row, phase) for row in it.rows]) for it in (before, now)))]


def _own(digest: Digest, row: DigestRow, phase: str) -> Estimate:
    return row.own[digest.phases.index(phase)] if phase in digest.phases else NOTHING


def _middle(found: Sequence[Estimate]) -> Estimate:
    """The estimate in the middle, with the error in the middle: that of rows beside each other is not independent."""
    seconds, errors = sorted(each.seconds for each in found), sorted(each.error for each in found)
    return Estimate(seconds[(len(found) - 1) // 2], errors[len(found) // 2]) if found else NOTHING


def _common(pairs: Sequence[_Pair], whole: float) -> _Pair | None:
    """The row that stands for a change of nearly all ranks: the one in the middle by its change; None: there is none
    for certain. Its errors are those in the middle."""
    pairs = [pair for pair in pairs if pair.row.whole] or pairs
    ordered = sorted(pairs, key=lambda pair: pair.seconds)
    middles = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    chosen = min(middles, key=lambda pair: abs(pair.seconds))
    change = chosen.seconds
    like = sum(pair.seconds * math.copysign(1.0, change) > abs(change) / 2 for pair in pairs)
    before, now = (sorted(getattr(pair, name).error for pair in pairs)[len(pairs) // 2] for name in ("before", "now"))
    found = chosen._replace(before=Estimate(chosen.before.seconds, before), now=Estimate(chosen.now.seconds, now))
    if like < ALL_SHARE * len(pairs) or not _is_certain(
        found.before, found.now, whole, DECISION_ERRORS, MIN_STEP_SHARE
    ):
        return None
    return found


def _some_ranks(
    pairs: Sequence[_Pair], common: float, whole: float, phase: str, rows: Sequence[DigestRow]
) -> Iterator[Change]:
    """The changes of some ranks alone, beyond what is `common` to all: one for those that take longer, and one for
    those that take shorter."""
    pairs = [pair for pair in pairs if not pair.row.whole] if len({pair.row.alike for pair in pairs}) < 2 else pairs
    if len(pairs) < 2:
        return
    rest = sorted(abs(pair.seconds - common) for pair in pairs)
    spread = QUARTER_TO_SIGMA * rest[(len(rest) - 1) // 4]
    for sign in (1, -1):
        hit = [pair for pair in pairs if _differs(pair, sign * (pair.seconds - common), whole, spread)]
        if not hit:
            continue
        typical = sorted(hit, key=lambda pair: pair.seconds)[len(hit) // 2]
        ranks, nodes = named_ranks([pair.row for pair in hit], rows)
        yield _change(typical.before, typical.now, kind="phase", phase=phase, shift=common, ranks=ranks, nodes=nodes)


def _differs(pair: _Pair, beyond: float, whole: float, spread: float) -> bool:
    limit = _limit(pair.before, pair.now, whole, PLACE_ERRORS, MIN_PLACE_SHARE)
    return beyond > max(limit, PLACE_SPREAD * spread)


def _operation_changes(before: Digest, now: Digest, whole: float) -> Iterator[Change]:
    """Where one of the runs tells no operations, all collectives together."""
    if not (before.operations and now.operations):
        if before.waits and now.waits and _is_certain(
            before.waits, now.waits, whole, DECISION_ERRORS, MIN_STEP_SHARE
        ):  # fmt: skip
            yield _change(before.waits, now.waits, kind="collectives")
        return
    old, new = _by_kind(before.operations), _by_kind(now.operations)
    for name in dict.fromkeys((*old, *new)):
        for one, other in _matched(old.get(name, []), new.get(name, [])):
            change = _operation_change(one, other, whole)
            if change is not None:
                yield change


def _by_kind(operations: Sequence[DigestOperation]) -> dict[tuple[str, str, int], list[DigestOperation]]:
    return grouped(operations, lambda each: (each.op, each.role, each.members))


def _matched(
    old: Sequence[DigestOperation], new: Sequence[DigestOperation]
) -> list[tuple[DigestOperation | None, DigestOperation | None]]:
    """The operations of one kind by their sizes, where these are as they were; else all sizes together."""
    sizes = [{_size_class(each): each for each in side} for side in (old, new)]
    if sizes[0].keys() == sizes[1].keys():
        return [(sizes[0][size], sizes[1][size]) for size in sizes[0]]
    return [(_together(old), _together(new))]


def _size_class(operation: DigestOperation) -> int:
    return int(math.log2(operation.size_bytes) // 2) if operation.size_bytes else -1


def _together(operations: Sequence[DigestOperation]) -> DigestOperation | None:
    if not operations:
        return None
    usual, slowest = (
        Estimate(
            sum(getattr(each, name).seconds for each in operations),
            math.hypot(*(getattr(each, name).error for each in operations)),
        )
        for name in ("usual", "slowest")
    )
    total = sum(each.bytes for each in operations)
    return structs.replace(operations[0], size_bytes=None, bytes=total, usual=usual, slowest=slowest)


def _operation_change(old: DigestOperation | None, new: DigestOperation | None, whole: float) -> Change | None:
    told = new or old
    if told is None:
        return None
    about: dict[str, Any] = {"op": told.op, "role": told.role, "members": told.members, "size_bytes": told.size_bytes}
    pairs = [(getattr(old, name, NOTHING), getattr(new, name, NOTHING)) for name in ("usual", "slowest")]
    if _is_certain(*pairs[0], whole, DECISION_ERRORS, MIN_STEP_SHARE):
        return _change(*pairs[0], kind="operation", **about)
    if told.groups > 1 and _is_certain(*pairs[1], whole, PLACE_ERRORS, MIN_PLACE_SHARE):
        return _change(*pairs[1], kind="operation", ranks=named_ranks_of(told), **about)
    return None


def named_ranks_of(operation: DigestOperation) -> tuple[int, ...]:
    ranks, _ = named_ranks([DigestRow(operation.slowest_ranks, None, 0, ())], ())
    return ranks


def _smallest(before: Digest, now: Digest, whole: float) -> dict[str, float]:
    """The least change in all ranks that would have been seen, of each phase that every step has."""
    limits = {}
    for phase in dict.fromkeys((*before.phases, *now.phases)):
        if not phase.endswith(IN_FEW_STEPS) and phase not in SCRIPT_PHASES:
            one, other = (_middle([_own(it, row, phase) for row in it.rows]) for it in (before, now))
            limits[phase] = _round(_limit(one, other, whole, DECISION_ERRORS, MIN_STEP_SHARE))
    return limits
