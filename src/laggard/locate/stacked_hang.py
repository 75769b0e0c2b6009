"""The ranks that the stacks of an ended job call hung, where nothing else tells: each stood in its own code while all
others waited in a collective. Pure.

A stack says where a process stood once. So it counts only where the process is known to have stood there to the end,
and where all ranks of the job left one: who is missing may be whom all wait for. The thresholds are our own choices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from laggard.locate.explanation import explained
from laggard.locate.job_timings import JobTimings
from laggard.model import MAX_NAMED_RANKS, Culprit
from laggard.stacks.frames import own_frame
from laggard.stacks.gathered import Standing, standings
from laggard.stacks.sampled import HELD, STALLED, TERMINATED, Sampled
from laggard.text.words import joined, ranks_text, seconds_text

MAX_SHARE = 0.5
"""The largest share of the ranks that may stand outside of collectives. Where there are more, nobody waits for them."""

CONFIDENCE = 0.7
"""The confidence in such a culprit: it stood still when the job was ended, and may have come later."""


def hung_by_stacks(
    timings: JobTimings, standing: Mapping[int, Sampled], documents: Mapping[int, Sequence[Sampled]]
) -> tuple[Culprit, ...]:
    """The hung ranks, those at one place as one culprit; none where the stacks cannot decide. `standing`: where each
    rank stood last; `documents`: all that each left."""
    if (timings.live and len(timings.ranks)) or not _is_whole(timings, standing):
        return ()
    all_of = standings(standing.values())
    out = [each for each in all_of if not each.waits]
    waiting = [each for each in all_of if each.waits]
    count = sum(len(each.ranks) for each in out)
    if not out or not waiting or count > MAX_SHARE * len(standing):
        return ()
    columns = {rank: place for place, rank in enumerate(timings.ranks.tolist())}
    ranks = [rank for each in out for rank in each.ranks]
    since = _waits_since(standing[rank] for each in waiting for rank in each.ranks)
    if not all(_stood_to_the_end(columns.get(rank), standing[rank], timings, documents[rank], since) for rank in ranks):
        return ()
    return tuple(explained(_culprit(each, waiting, standing, timings), timings) for each in out)


def _is_whole(timings: JobTimings, standing: Collection[int]) -> bool:
    size = max(timings.world_size, 1 + max(standing, default=0))
    return len(standing) == size


def _waits_since(waiting: Iterable[Sampled]) -> float:
    """The Unix time since which all of them wait."""
    return max((it.at - it.stalled_seconds for it in waiting if it.why == STALLED), default=math.inf)


def _stood_to_the_end(
    column: int | None, last: Sampled, timings: JobTimings, documents: Sequence[Sampled], since: float
) -> bool:
    """Whether nothing says that the rank went on from there, or that it was in a collective all the same: one that it
    had begun and did not wait for in Python. `since`: when the others' wait began, Unix time."""
    if last.why not in (STALLED, HELD):
        return False
    if not len(timings.ranks):
        return True
    if column is None:  # one that is held writes nothing; of an earlier standstill its dump may be as well
        return last.why == HELD and last.at >= since
    state, beat = timings.states[column], timings.last_beats[column] if timings.last_beats else None
    if state.in_flight is not None or state.stopped:
        return False
    if beat is None:
        return _was_there_when_asked_to_end(last, documents)
    begun = any(0 <= group.completed < group.enqueued for group in beat.beat.groups)
    return beat.in_flight is None and not begun


def _was_there_when_asked_to_end(last: Sampled, documents: Sequence[Sampled]) -> bool:
    """Whether SIGTERM found the rank at the same line: a handler then ended it in order, and no beat is its last."""
    own = own_frame(last.training.stacks[0].frames)
    asked = (own_frame(each.training.stacks[0].frames) for each in documents if each.why == TERMINATED)
    return any((each.file, each.line) == (own.file, own.line) for each in asked)


def _culprit(
    standing: Standing, waiting: Sequence[Standing], sampled: Mapping[int, Sampled], timings: JobTimings
) -> Culprit:
    columns = [place for place, rank in enumerate(timings.ranks.tolist()) if rank in standing.ranks]
    nodes = {sampled[rank].node for rank in standing.ranks}
    steps = [step for column in columns if (step := timings.states[column].step) is not None]
    victims = sorted(rank for each in waiting for rank in each.ranks)
    return Culprit(
        kind="hung",
        ranks=standing.ranks[:MAX_NAMED_RANKS],
        node=nodes.pop() or None if len(nodes) == 1 else None,
        gpu=timings.gpus[columns[0]] if len(standing.ranks) == len(columns) == 1 else None,
        since_step=min(steps) + 1 if steps else None,
        confidence=CONFIDENCE,
        evidence=tuple(_evidence(standing, waiting, victims, sampled)),
        victims=tuple(victims[:MAX_NAMED_RANKS]),
    )


def _evidence(
    standing: Standing, waiting: Sequence[Standing], victims: Sequence[int], sampled: Mapping[int, Sampled]
) -> Iterator[str]:
    holds = any(sampled[rank].why == HELD for rank in standing.ranks)
    several, seconds = len(standing.ranks) > 1, max(sampled[rank].stalled_seconds for rank in standing.ranks)
    for_long = f" for {seconds_text(seconds)} or more" if seconds else ""
    others = f"{ranks_text(victims)} {'was' if len(victims) == 1 else 'were'}"
    waits = joined(list(dict.fromkeys(each.waits for each in waiting))[:3])
    yield (
        f"{'they' if several else 'it'} stood still in {'their' if several else 'its'} own code{for_long}, in no"
        f" collective{', with Python held up by C code' if holds else ''}, while {others} in {waits}"
    )
