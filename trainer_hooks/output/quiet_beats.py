"""Writes into a recording where a rank stands while it finishes no step. Of a process that is killed there, nothing
else tells what it was in.

The heartbeat's thread calls it about once a second; the training thread does nothing for it.
"""

from __future__ import annotations

from typing import Any, Final

from laggard.constants import PHASES
from laggard.rankfile import BeatRecord
from laggard.rankfile.layout import FLIGHT_RECORDER, LANE_SHIFT, SEQUENCE_MASK, WORD_CURRENT, WORD_ISSUED, WORD_PHASE
from laggard.trainer_hooks.output.local_ranks import LocalRanks
from laggard.trainer_hooks.output.recording import RecordingSink
from laggard.trainer_hooks.record.hot_path_state import HotPathState

_MIN_SECONDS: Final = 1.0  # without a step: most jobs' steps are shorter, and their recordings have no such line
_MAX_SECONDS: Final = 5.0  # between two lines: a job whose steps take minutes gets 10 MB a day


class QuietBeats:
    """Takes the beats of one rank, and writes a line about one that comes _MIN_SECONDS after the last step or later.
    The next follows when half as much time again has passed, at least _MIN_SECONDS, at most _MAX_SECONDS."""

    def __init__(self, sink: RecordingSink, live: HotPathState, others: LocalRanks) -> None:
        self._sink = sink
        self._others = others
        self._live = live
        self._since = 0  # the end of the last step, or the start
        self._due = 0.0

    @property
    def words(self) -> memoryview:
        return self._live.words

    def write_facts(self, text: bytes) -> None:
        """Nothing: the rank's line holds the facts that a recording needs."""

    def write_beat(self, beat: BeatRecord) -> None:
        self._others.remember()
        since = self._sink.quiet_since_ns
        if since != self._since:
            self._since, self._due = since, _MIN_SECONDS
        quiet = (beat.at_ns - since) / 1e9
        if quiet < self._due:
            return
        interval = min(max(_MIN_SECONDS, quiet / 2), _MAX_SECONDS)
        self._due = quiet + interval
        phase = self._live.words[WORD_PHASE]
        self._sink.write_at_once(
            {
                "kind": "beat",
                "quiet_seconds": quiet,
                "phase": PHASES[phase] if 0 <= phase < len(PHASES) else None,
                "in_flight": self._in_flight(beat.at_ns),
                "beat": self._beat(beat, interval),
            }
        )
        self._others.look()

    def _in_flight(self, now: int) -> dict[str, Any] | None:
        """The collective that the training thread is in. It may leave it while this thread reads: then it is in none
        for long."""
        words = self._live.words
        issued, current = words[WORD_ISSUED], words[WORD_CURRENT]
        lanes = self._sink.lanes
        if not issued or issued != words[WORD_ISSUED] or current >> LANE_SHIFT >= len(lanes):
            return None
        lane = lanes[current >> LANE_SHIFT]
        seconds = max(0, now - issued) / 1e9
        place = {"op": lane.op, "group": lane.group, "seq": current & SEQUENCE_MASK, "seconds": seconds}
        return place if lane.peer < 0 else {**place, "peer": lane.peer}

    def _beat(self, beat: BeatRecord, interval: float) -> dict[str, Any]:
        """The beat, as of itself, in the form of an agent's rows."""
        return {
            "age_seconds": 0.0,
            "interval_seconds": interval,
            "flight_recorder": FLIGHT_RECORDER[beat.flight_recorder],
            "lanes": [
                {
                    "op": lane.op,
                    "group": lane.group,
                    "entered": entered,
                    "done": done,
                    **({} if lane.peer < 0 else {"peer": lane.peer}),
                }
                for lane, (entered, done) in zip(self._sink.lanes, beat.lanes, strict=False)
            ],
            "groups": [
                {
                    "name": group.name,
                    "enqueued": group.enqueued,
                    "started": group.started,
                    "completed": group.completed,
                    "seconds": max(0, beat.asked_ns - group.moved_ns) / 1e9,
                }
                for group in beat.groups
            ],
            "groups_age_seconds": max(0, beat.at_ns - beat.asked_ns) / 1e9 if beat.asked_ns else None,
        }
