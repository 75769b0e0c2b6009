"""A rank for tests: writes a rank file by the commands on its standard input, one a line, and prints `done` after each.

The writer must be another process than the reader: a process that closes its own file drops its own lock.
"""

import json
import os
import sys
import time

from laggard.rankfile import BeatRecord, Lane
from laggard.rankfile.layout import LANE_SHIFT, WORD_CURRENT, WORD_ISSUED, WORD_PHASE, WORD_PROGRESS
from laggard.rankfile.writer import RankFileWriter

MS = 10**6
PHASES = (100 * MS, 200 * MS, 300 * MS, 100 * MS, 0, 0, 0, 0, 50 * MS)
WORK = 4096
WAITED = 250 * MS
STEP = sum(PHASES) + WAITED


class Rank:
    def __init__(self, directory: str, identity: dict[str, object], lanes: list[list[str]]) -> None:
        clocks = {"wall_ns": time.time_ns(), "monotonic_ns": time.perf_counter_ns()}
        self.writer = RankFileWriter(directory, {**clocks, **identity})
        self.lanes = [self.writer.add_lane(Lane(*lane)) for lane in lanes]
        self.count = 0
        self.end = time.perf_counter_ns()

    def step(self) -> None:
        """A step of one second that ended just now. Its numbers follow from the number of steps."""
        self.end = max(time.perf_counter_ns(), self.end + 1)
        self.writer.write_step(self.count, self.end - STEP, self.end, *PHASES, WAITED, WORK)
        self.count += 1
        n = self.count
        own = sum(PHASES) - PHASES[0]
        fixed = (n, n - 1, n * STEP, n * own, *(n * phase for phase in PHASES), n * WAITED, 2, 1, n * WORK)
        lanes = [
            number for lane in self.lanes for number in (4 * n, n * WAITED // len(self.lanes), (lane + 1) * n << 20)
        ]
        self.writer.write_counters(fixed, lanes)
        self.writer.words[WORD_PROGRESS] = self.end

    def collectives(self) -> None:
        """Ten collectives of lane 0 in the last step, a millisecond each; one more has not ended, two are absurd."""
        last = self.end - STEP
        numbers = [[number, last + number * MS, last + (number + 1) * MS, MS, 1 << 20] for number in range(1, 11)]
        numbers += [[11, last + 11 * MS, 0, 0, 1 << 20], [12, last + 12 * MS, last, 0, -5]]
        numbers += [[-1, last + 13 * MS, last + 14 * MS, 0, 0]]
        self.writer.write_collectives(self.count - 1, [number for record in numbers for number in record])

    def block(self) -> None:
        """Enters the seventh collective of lane 1, in the backward phase, and stays in it."""
        self.writer.words[WORD_PHASE] = 2
        self.writer.words[WORD_CURRENT] = 1 << LANE_SHIFT | 7
        self.writer.words[WORD_ISSUED] = time.perf_counter_ns()

    def beat(self) -> None:
        """A heartbeat: one collective of the first lane entered and done, two of the second, and so on."""
        lanes = tuple((lane + 1, lane + 1) for lane in self.lanes if lane is not None)
        self.writer.write_beat(BeatRecord(time.perf_counter_ns(), 10**9, 0, lanes, ()))

    def look(self) -> None:
        """Looks at the ranks beside it, as one that stands still does."""
        from laggard.trainer_hooks.output.hang_folder import silent_peers

        list(silent_peers(self.writer.path, "no such job", -1, 0.0))

    def facts(self, path: str) -> None:
        """Writes the JSON in the file `path` as the rank's facts."""
        with open(path, "rb") as file:
            self.writer.write_facts(file.read())

    def finish(self) -> None:
        self.writer.close()
        raise SystemExit

    def run(self) -> None:
        """Writes steps without a pause, until the process is killed in the middle of one."""
        while True:
            self.step()


def main() -> None:
    directory, user, identity, lanes = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
    if user:  # after the imports: the interpreter may lie where only root can read it
        os.setresuid(user, user, user)
    rank = Rank(directory, identity, lanes)
    print(rank.writer.path, flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        getattr(rank, command)(*arguments)
        print("done", flush=True)


main()
