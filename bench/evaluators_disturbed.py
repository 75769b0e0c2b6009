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
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from common.figures import Figure, show, single
from common.refused import refuse
from evaluators_killed import BUDGET_SECONDS, ROUND_SECONDS, TRUTH, Trial, counts, require
from support.evaluator_fleet import Fleet, fleet, wait_until

EVALUATORS, MORE = 3, 2
QUIET_SECONDS = 120
"""The time after which an incident that nobody tells of is closed: longer than a disturbance."""


_HANGING = ExitStack()


class Disturbance(NamedTuple):
    """`seconds`: for how long, by the options."""

    name: str
    begin: Callable[[Fleet], object]
    end: Callable[[Fleet], object]
    seconds: Callable[[argparse.Namespace], float] = lambda options: options.seconds


def cut_both(of: Fleet) -> None:
    of.to_prometheus.cut()
    of.to_database.cut()


def mend_both(of: Fleet) -> None:
    of.to_prometheus.mend()
    of.to_database.mend()


def start_more(of: Fleet) -> None:
    for each in of.evaluators[EVALUATORS:]:
        each.start()


def end_three(of: Fleet) -> None:
    for each in of.evaluators[:EVALUATORS]:
        each.stop()


DISTURBANCES = (
    Disturbance(
        "PostgreSQL hangs", lambda of: _HANGING.enter_context(of.database.stopped()), lambda of: _HANGING.close()
    ),
    Disturbance("Prometheus hangs", lambda of: of.prometheus.stop(), lambda of: of.prometheus.go_on()),
    Disturbance("one is cut from PostgreSQL", lambda of: of.to_database.cut(), lambda of: of.to_database.mend()),
    Disturbance("one is cut from Prometheus", lambda of: of.to_prometheus.cut(), lambda of: of.to_prometheus.mend()),
    Disturbance("one is cut from both", cut_both, mend_both),
    Disturbance(
        "PostgreSQL is away",
        lambda of: of.database.kill(),
        lambda of: of.database.start(),
        lambda options: options.away,
    ),
    Disturbance("three become five, then two", start_more, end_three, lambda options: options.seconds / 2),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which each lasts")
    parser.add_argument("--away", type=float, default=120.0, help="seconds for which PostgreSQL is away")
    parser.add_argument("--only", default="", help="the disturbances whose name has this word")
    options = parser.parse_args()
    chosen = [it for it in DISTURBANCES if options.only in it.name]
    if not chosen:
        refuse(f"no disturbance has {options.only!r} in its name: {'; '.join(it.name for it in DISTURBANCES)}")
    require()
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
        for number, it in enumerate(chosen):
            seconds = it.seconds(options)
            begin, end = partial(it.begin, of), partial(it.end, of)
            one = trial.through(f"fault-{number}", it.name, begin, end, seconds)
            later = max(0.0, one.right_after - one.down_seconds)
            found.append(single(f"{it.name} for {seconds:.0f} s: right again after", later, "s", BUDGET_SECONDS))
            print(f"{it.name}: right {later:.1f} s after its end, the new fault {one.told_after:.1f} s after its "
                  f"beginning; {trial.amiss}", file=sys.stderr, flush=True)  # fmt: skip
        print(f"answers by verdict: {dict(trial.answers)}", file=sys.stderr)
        for each in of.evaluators:
            defects = [line for line in each.log().splitlines() if "defect" in line or "Traceback" in line]
            print(f"{each.name}: {len(defects)} defects in its log {defects[:3]}", file=sys.stderr)
        return 0 if show("evaluators, disturbed", [*counts(trial, of.running[0]), *found]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
