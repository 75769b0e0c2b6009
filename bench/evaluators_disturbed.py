"""Disturbs a fleet of evaluators in ways that end no process, and counts what goes wrong, as evaluators_killed.py does.

    evaluators_disturbed.py [--seconds 60] [--away 120] [--only WORD]

Three evaluators, the Prometheus and the PostgreSQL that they share, and eight jobs, all of it real. One after the
other, for so many seconds each: PostgreSQL hangs, Prometheus hangs (both by SIGSTOP: their kernel takes what is sent,
and nothing answers); the way of one evaluator to either is cut, and to both (a proxy that takes what is sent and passes
nothing on); PostgreSQL is away for --away seconds; two more evaluators come, and then three of the five end. The
figures are the seconds from the end of the disturbance until all is right again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from common.figures import Figure, show
from evaluators_killed import BUDGET_SECONDS, ROUND_SECONDS, TRUTH, Trial, counts
from support.evaluator_fleet import Fleet, fleet, wait_until

EVALUATORS, MORE = 3, 2
QUIET_SECONDS = 120
"""The time after which an incident that nobody tells of is closed: longer than a disturbance."""


class Disturbance(NamedTuple):
    name: str
    begin: Callable[[], None]
    end: Callable[[], None]
    seconds: float


def disturbances(of: Fleet, seconds: float, away: float) -> list[Disturbance]:
    hanging = ExitStack()
    ways = (of.to_prometheus, of.to_database)

    def number_changes() -> None:
        for each in of.evaluators[EVALUATORS:]:
            each.start()

    def number_falls() -> None:
        for each in of.evaluators[:EVALUATORS]:
            each.stop()

    return [
        Disturbance("PostgreSQL hangs", lambda: hanging.enter_context(of.database.stopped()), hanging.close, seconds),
        Disturbance("Prometheus hangs", of.prometheus.stop, of.prometheus.go_on, seconds),
        Disturbance("one is cut from PostgreSQL", of.to_database.cut, of.to_database.mend, seconds),
        Disturbance("one is cut from Prometheus", of.to_prometheus.cut, of.to_prometheus.mend, seconds),
        Disturbance(
            "one is cut from both",
            lambda: [it.cut() for it in ways] and None,
            lambda: [it.mend() for it in ways] and None,
            seconds,
        ),  # fmt: skip
        Disturbance("PostgreSQL is away", of.database.kill, of.database.start, away),
        Disturbance("three become five, then two", number_changes, number_falls, seconds / 2),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--away", type=float, default=120.0)
    parser.add_argument("--only", default="", help="the disturbances whose name has this word")
    options = parser.parse_args()
    settings = {"prometheus_interval_seconds": ROUND_SECONDS, "incident_quiet_seconds": QUIET_SECONDS}
    with (
        tempfile.TemporaryDirectory() as folder,
        fleet(Path(folder), EVALUATORS + MORE, **settings) as of,
    ):
        trial = Trial(of, 1, 0.0)
        time.sleep(10.0)  # until there are samples enough for a verdict
        of.prometheus.wait_ready()
        for each in of.evaluators[:EVALUATORS]:
            each.start()
        wait_until(lambda: trial.is_right(TRUTH))
        found: list[Figure] = []
        for number, it in enumerate(disturbances(of, options.seconds, options.away)):
            if options.only in it.name:
                one = trial.through(f"fault-{number}", it.name, it.begin, it.end, it.seconds)
                later = max(0.0, one.right_after - one.down_seconds)
                found.append(Figure(f"{it.name} for {it.seconds:.0f} s: right again after", later, "s", later, later,
                                    BUDGET_SECONDS))  # fmt: skip
                print(f"{it.name}: right {later:.1f} s after its end, the new fault {one.told_after:.1f} s after its "
                      f"beginning; {trial.amiss}", file=sys.stderr, flush=True)  # fmt: skip
        print(f"answers by verdict: {dict(trial.answers)}", file=sys.stderr)
        for each in of.evaluators:
            defects = [line for line in each.log().splitlines() if "defect" in line or "Traceback" in line]
            print(f"{each.name}: {len(defects)} defects in its log {defects[:3]}", file=sys.stderr)
        return 0 if show("evaluators, disturbed", [*counts(trial, of.running[0]), *found]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
