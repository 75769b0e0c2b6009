"""The part that one analysis (crashes, hangs, slow ranks) contributes to the verdict on a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.majority import grouped
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

CONFIDENCE: Final = 0.9
"""The confidence in a rank that differs from most of its replicas: they are equal to the bit by construction, and only
another model of GPU or CPU among them may round otherwise."""

PAIR: Final = "corrupt_pair"
SKIPPED: Final = "digest_skipped"


_Digests = Mapping[int, Mapping[int, int]]
"""The digests of replicas, by rank and step."""


def corrupt_ranks(timings: JobTimings) -> PartialVerdict:
    """The culprits of kind `corrupt`; notes on replicas of which nobody knows who is right, and on what is not
    compared."""
    ranks = timings.ranks.tolist()
    told = {rank: each for rank, each in zip(ranks, timings.digests, strict=False) if each is not None}
    classes = [0] * len(ranks) if timings.replicas is None else timings.replicas.tolist()
    place_of = dict(zip(ranks, classes, strict=True))
    replicas = _replicas({rank: each.by_step for rank, each in told.items() if each.by_step}, place_of)
    judged = [_judged(group, timings) for group in replicas if len(group) > 1]
    several = Counter(place_of[rank] for group in replicas for rank in group)
    alone = sorted(rank for group in replicas if len(group) == 1 for rank in group if several[place_of[rank]] > 1)
    culprits = tuple(culprit for found in judged for culprit in found.culprits)
    notes = (note for found in judged for note in found.notes)
    return PartialVerdict(culprits, (*notes, *_skipped_notes(told, alone)))


def _replicas(told: _Digests, place_of: Mapping[int, int]) -> list[_Digests]:
    """The ranks of one place whose first digests are the same."""
    groups = grouped(sorted(told), lambda rank: (place_of[rank], next(iter(told[rank].items()))))
    return [{rank: told[rank] for rank in ranks} for ranks in groups.values()]


def _judged(group: _Digests, timings: JobTimings) -> PartialVerdict:
    """The ranks of one group that differ from most of it; or the note that some do, and that nobody knows who is
    right."""
    step = _newest_differing(group)
    if step is None:
        return NOTHING_FOUND
    values = {rank: own[step] for rank, own in group.items() if step in own}
    (usual, most), *others = Counter(values.values()).most_common()
    if 2 * most > len(group) and all(count == 1 for _, count in others):
        right = {rank: group[rank] for rank, value in values.items() if value == usual}
        wrong = [rank for rank, value in values.items() if value != usual]
        return PartialVerdict(tuple(_culprit(rank, group[rank], right, step, timings) for rank in wrong))
    return PartialVerdict(notes=(_undecided_note(group, tuple(sorted(values)), most),))


def _newest_differing(group: _Digests) -> int | None:
    """The newest step at which not all have the same, of the steps that most ranks have: a live rank may be a step
    ahead of another. None where there is none, or where fewer than two, or no majority, have one."""
    counts = Counter(step for own in group.values() for step in own)
    most = max(counts.values())
    if most < 2 or 2 * most <= len(group):
        return None
    differing = (step for step, count in counts.items() if count == most and len(_at(step, group)) > 1)
    return max(differing, default=None)


def _at(step: int, group: _Digests) -> set[int]:
    return {own[step] for own in group.values() if step in own}


def _undecided_note(group: _Digests, ranks: tuple[int, ...], most: int) -> Note:
    """Two replicas, or two camps of them, differ; where all differ from each other it is none of them: an update that
    is not the same on each, or that is not over when the step is, makes them so."""
    if most == 1 and len(group) > 2:
        text = f"the parameters of {ranks_text(ranks)} all differ from each other, so that they are not compared"
        return Note(SKIPPED, text, ranks=ranks[:MAX_NAMED_RANKS])
    agreed = next(step for own in group.values() for step in own)
    text = f"corrupted: {ranks_text(ranks)} differ, which one is not known; their parameters were the same at step"
    return Note(PAIR, f"{text} {agreed}", ranks=ranks[:MAX_NAMED_RANKS])


def _culprit(rank: int, own: Mapping[int, int], right: _Digests, step: int, timings: JobTimings) -> Culprit:
    """The rank that differs from those that are `right`. Where an update takes the parameters from another rank, as
    with ZeRO-1, it is right again later."""
    column = timings.column_of[rank]
    digests = timings.digests[column]
    same = [at for at in own if own[at] in _at(at, right)]
    agreed = max(at for at in same if at < step)
    since = min(at for at in own if at > agreed and _at(at, right))
    again = min((at for at in same if at > step), default=None)
    replicas = f"{len(right)} replicas" if len(right) > 1 else "its replica"
    early = " or before" if digests is not None and since - agreed > digests.every else ""
    evidence = [
        f"its parameters differ from {replicas} since step {since}{early}",
        f"at step {agreed} they were the same",
    ]
    if again is not None:
        evidence.append(f"from step {again} on they are the same again")
    return Culprit(
        kind="corrupt",
        ranks=(rank,),
        node=timings.nodes[column],
        gpu=timings.gpus[column],
        since_step=since,
        confidence=CONFIDENCE,
        evidence=tuple(evidence),
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
