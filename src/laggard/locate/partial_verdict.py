"""The part that one analysis (crashes, hangs, slow ranks) contributes to the verdict on a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.words import ranks_text
from laggard.locate.job_timings import JobTimings, RankDigests
from laggard.model import MAX_NAMED_RANKS, Culprit, Note
from laggard.rankfile.fact_names import DIGEST_SKIPPED_REASONS


class PartialVerdict(NamedTuple):
    culprits: tuple[Culprit, ...] = ()
    notes: tuple[Note, ...] = ()


NOTHING_FOUND = PartialVerdict()


# The ranks whose parameters differ from those of their replicas, by digests of equal steps. Pure.
#
# Replicas start with the same parameters and make the same updates, so that their digests stay the same to the bit. Who
# agreed with others at first and differs later computes wrong results, or its memory does not keep them. Who never
# agreed with anybody holds other parameters by design, and is not compared.

MIN_REPLICAS: Final = 3
"""The least number of replicas among which one that differs is named: of two nobody knows which one is right."""

CONFIDENCE: Final = 0.9
"""The confidence in a rank that differs from most of its replicas: they are equal to the bit by construction, and only
another model of GPU or CPU among them may round otherwise."""

PAIR: Final = "corrupt_pair"
SKIPPED: Final = "digest_skipped"


class _Differing(NamedTuple):
    """A rank that differs from `others` replicas, for the first time at `since`; `agreed`: the last step before at
    which it did not; `again`: the first after at which it does no longer, None where there is none."""

    rank: int
    others: int
    since: int
    agreed: int
    again: int | None


def corrupt_ranks(timings: JobTimings) -> PartialVerdict:
    """The culprits of kind `corrupt`; notes on replicas of which nobody knows who is right, and on what is not
    compared."""
    ranks = timings.ranks.tolist()
    told = {rank: each for rank, each in zip(ranks, timings.digests, strict=False) if each is not None}
    if not told:
        return NOTHING_FOUND
    classes = [0] * len(ranks) if timings.replicas is None else timings.replicas.tolist()
    class_of = dict(zip(ranks, classes, strict=True))
    differing: list[_Differing] = []
    notes: list[Note] = []
    groups, alone = _replicas({rank: each for rank, each in told.items() if each.by_step}, class_of)
    for group in groups:
        found, note = _judged({rank: told[rank] for rank in group})
        differing += found
        notes += [note] if note is not None else []
    culprits = tuple(_culprit(each, timings, ranks.index(each.rank), told[each.rank].every) for each in differing)
    return PartialVerdict(culprits, (*notes, *_skipped_notes(told, alone)))


def _replicas(told: Mapping[int, RankDigests], class_of: Mapping[int, int]) -> tuple[list[list[int]], list[int]]:
    """The groups of ranks of one place whose first digests are the same; and the ranks that have none like them in
    their place, though there are others."""
    by_first: dict[tuple[int, int, int], list[int]] = {}
    for rank, each in sorted(told.items()):
        step, value = next(iter(each.by_step.items()))
        by_first.setdefault((class_of[rank], step, value), []).append(rank)
    sizes = Counter(class_of[rank] for rank in told)
    groups = [group for group in by_first.values() if len(group) > 1]
    alone = [group[0] for key, group in by_first.items() if len(group) == 1 and sizes[key[0]] > 1]
    return groups, sorted(alone)


def _judged(group: Mapping[int, RankDigests]) -> tuple[list[_Differing], Note | None]:
    """The ranks of one group that differ from most of it; or the note that some do, and that nobody knows who is
    right."""
    step = _newest_differing(group)
    if step is None:
        return [], None
    values = {rank: each.by_step[step] for rank, each in group.items() if step in each.by_step}
    counts = Counter(values.values()).most_common()
    usual, most = counts[0]
    outliers = [rank for rank, value in values.items() if value != usual]
    if len(group) >= MIN_REPLICAS and 2 * most > len(group) and all(count == 1 for _, count in counts[1:]):
        right = [rank for rank, value in values.items() if value == usual]
        return [_since(rank, right, group, step) for rank in outliers], None
    return [], _undecided_note(group, values, counts[0][1])


def _newest_differing(group: Mapping[int, RankDigests]) -> int | None:
    """The newest step at which not all have the same, of the steps that most ranks have: a live rank may be a step
    ahead of another. None where there is none, or where fewer than two, or no majority, have one."""
    counts = Counter(step for each in group.values() for step in each.by_step)
    most = max(counts.values())
    if most < 2 or 2 * most <= len(group):
        return None
    common = sorted((step for step, count in counts.items() if count == most), reverse=True)
    return next((step for step in common if len(_at(step, group)) > 1), None)


def _at(step: int, group: Mapping[int, RankDigests]) -> set[int]:
    return {each.by_step[step] for each in group.values() if step in each.by_step}


def _since(rank: int, right: Sequence[int], group: Mapping[int, RankDigests], step: int) -> _Differing:
    """Since when the rank differs: the first of the steps, back from `step`, at which it has another digest than those
    that are right. Where an update takes the parameters from another rank, as with ZeRO-1, it is right again later."""
    own, since = group[rank].by_step, step
    told = {each: _at(each, {other: group[other] for other in right}) for each in own}
    again = min((each for each in own if each > step and own[each] in told[each]), default=None)
    for earlier in sorted((each for each in own if each < step), reverse=True):
        if own[earlier] in told[earlier]:
            return _Differing(rank, len(right), since, earlier, again)
        since = earlier if told[earlier] else since
    return _Differing(rank, len(right), since, next(iter(own)), again)


def _undecided_note(group: Mapping[int, RankDigests], values: Mapping[int, int], most: int) -> Note:
    """Two replicas, or two camps of them, differ; where all differ from each other it is none of them: an update that
    is not the same on each, or that is not over when the step is, makes them so."""
    ranks = tuple(sorted(values))[:MAX_NAMED_RANKS]
    if len(group) >= MIN_REPLICAS and most == 1:
        text = f"the parameters of {ranks_text(ranks)} all differ from each other, so that they are not compared"
        return Note(SKIPPED, text, ranks=ranks)
    first = next(iter(group.values()))
    agreed = next(iter(first.by_step))
    names = " and ".join(map(str, ranks)) if len(ranks) == 2 else ranks_text(ranks).removeprefix("ranks ")
    text = f"corrupted: ranks {names} differ, which one is not known; their parameters were the same at step {agreed}"
    return Note(PAIR, text, ranks=ranks)


def _culprit(found: _Differing, timings: JobTimings, column: int, every: int) -> Culprit:
    replicas = f"{found.others} replicas" if found.others > 1 else "its replica"
    early = " or before" if found.since - found.agreed > every else ""
    since = f"its parameters differ from {replicas} since step {found.since}{early}"
    again = () if found.again is None else (f"from step {found.again} on they are the same again",)
    return Culprit(
        kind="corrupt",
        ranks=(found.rank,),
        node=timings.nodes[column],
        gpu=timings.gpus[column],
        since_step=found.since,
        confidence=CONFIDENCE,
        evidence=(since, f"at step {found.agreed} they were the same", *again),
    )


def _skipped_notes(told: Mapping[int, RankDigests], alone: Sequence[int]) -> Iterator[Note]:
    for reason, why in DIGEST_SKIPPED_REASONS.items():
        ranks = tuple(rank for rank, each in sorted(told.items()) if each.skipped == reason)
        if ranks:
            text = f"the parameters of {ranks_text(ranks)} are not compared: {why}"
            yield Note(SKIPPED, text, ranks=ranks[:MAX_NAMED_RANKS])
    if alone:
        text = f"the parameters of {ranks_text(alone)} never were those of another rank, and are not compared"
        yield Note(SKIPPED, text, ranks=tuple(alone)[:MAX_NAMED_RANKS])
