"""The last that the other ranks of its machine saw of a rank whose own recording has no end. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from laggard.constants import PHASES
from laggard.model import RankEnd
from laggard.processes.identity import GONE, STOPPED
from laggard.recording.records import SawLine
from laggard.wire.ranks import InFlight


class LastSeen(NamedTuple):
    """`end`: between which times it ended, None where nobody saw that. `stopped`: whether a signal or a debugger had
    stopped it, the last time that it was seen. `phase`, `in_flight`: where it stood then."""

    end: RankEnd | None
    stopped: bool
    phase: str | None
    in_flight: InFlight | None


class SeenRank(NamedTuple):
    """All that others saw of one rank, in the order of time."""

    lines: tuple[SawLine, ...]

    def last(self, recorded_at: float | None) -> LastSeen:
        """`recorded_at`: when the rank wrote its last record, Unix time."""
        gone = next((line for line in self.lines if line.state == GONE), None)
        living = [line for line in self.lines if line.state != GONE and not (gone and line.at_unix > gone.at_unix)]
        newest = gone or living[-1]
        end = None
        if gone is not None:
            alive = max([line.at_unix for line in living] + [0.0 if recorded_at is None else recorded_at])
            how = next((line for line in self.lines if line.signal or line.exit_code is not None), gone)
            end = RankEnd(max(gone.at_unix, 0.0), max(0.0, gone.at_unix - alive), how.exit_code, how.signal[:32])
        phase = newest.phase if newest.phase in PHASES else None
        return LastSeen(end, bool(living) and living[-1].state == STOPPED, phase, newest.in_flight)


def seen_by_others(lines: Iterable[SawLine]) -> dict[int, SeenRank]:
    """The observations by others, by rank."""
    found: dict[int, list[SawLine]] = {}
    for line in lines:
        found.setdefault(line.of, []).append(line)
    return {of: SeenRank(tuple(sorted(its, key=lambda line: line.at_unix))) for of, its in found.items()}
