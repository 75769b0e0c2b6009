"""Whether numbers can be meant: a checksum shows what was torn, not what was made up. A collector refuses a whole
node's answer for one absurd number in it, so that none may pass from one user's file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from laggard.rankfile import Beat, Counters, Lane, RankFileError, Step
from laggard.rankfile.layout import FLIGHT_RECORDER

MOST_RANKS_OF_A_JOB: Final = 1 << 20
MOST: Final = 1 << 53  # beyond, a number is no longer exact in JSON
MOST_SUM: Final = 1 << 62
MOST_STEP_NS: Final = 10**16  # 115 days


def check_identity(who: Mapping[str, Any]) -> None:
    """Raises RankFileError."""
    numbers = (who["local_rank"], who["attempt"])
    clocks = (who["wall_ns"], who["monotonic_ns"])
    if not who["job_id"] or who["world_size"] > MOST_RANKS_OF_A_JOB:
        raise RankFileError("impossible rank")
    if not (_within(numbers, MOST_RANKS_OF_A_JOB) and _within(clocks, MOST_SUM)):
        raise RankFileError("impossible rank")


def check_counters(counters: Counters) -> None:
    """Raises RankFileError."""
    totals = (counters.steps, counters.lost, counters.errors)
    times = (counters.step_ns, counters.own_ns, *counters.phases_ns)
    sums = tuple(sum(column) for column in zip(*counters.lanes, strict=True))
    lanes = (number for lane in counters.lanes for number in lane)
    if not (_within(totals, MOST // 2) and _within(times, MOST_SUM) and _within((*lanes, *sums), MOST_SUM)):
        raise RankFileError("impossible counters")


def check_lanes(lanes: Iterable[Lane]) -> None:
    """Raises RankFileError."""
    if not _within((lane.peer + 1 for lane in lanes), MOST_RANKS_OF_A_JOB):  # -1: none
        raise RankFileError("impossible peer")


def is_plausible(step: Step) -> bool:
    """A step that took as long as it says, in phases that each took some time or none."""
    spent = (*step.phases, step.waited, step.end - step.start)
    return 0 <= step.step <= MOST and step.start >= 0 and step.end <= MOST_SUM and _within(spent, MOST_STEP_NS)


def check_beat(beat: Beat | None) -> None:
    """Raises RankFileError."""
    if beat is None:
        return
    clocks = (beat.at_ns, beat.interval_ns, *(group.moved_ns for group in beat.groups))
    numbers = (number + 1 for group in beat.groups for number in group[1:4])  # -1: not told
    entered = (number for lane in beat.lanes for number in lane)
    known = 0 <= beat.flight_recorder < len(FLIGHT_RECORDER)
    if not (known and _within(clocks, MOST_SUM) and _within((*numbers, *entered), MOST)):
        raise RankFileError("impossible beat")


def _within(numbers: Any, most: int) -> bool:
    return all(0 <= number <= most for number in numbers)
