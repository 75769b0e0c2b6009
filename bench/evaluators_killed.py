"""Kills processes of a fleet of evaluators at random, again and again, and counts what goes wrong.

    evaluators_killed.py [--kills 50] [--seed 1] [--server-down 5]

Three evaluators, the Prometheus and the PostgreSQL that they share, four jobs with a slow rank and four without: all of
it real. Each time one of the five processes is killed as by `kill -9` (PostgreSQL by its immediate shutdown, after
which it recovers as after a crash) and started again some seconds later, as a supervisor does. At the moment of the
kill a fault begins, in a job of its own. Every evaluator is asked for every job, all the time.

It counts verdicts that are wrong, which `unknown` is not: `ok` on a job with a slow rank, a rank named that is not
slow. Incidents that were lost or doubled: at the end each fault has to have one. And from each kill on
the seconds until the last answer that was not right, from any evaluator that runs, and until the fault that began then
has its incident.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from common.figures import Figure, quartiles, show, single
from common.refused import need, refuse
from support.evaluator_fleet import EvaluatorProcess, Fleet, fleet, wait_until
from support.postgres import why_none

RANKS = 8
ROUND_SECONDS = 5
DOWN_SECONDS = 15.0
"""The longest time for which an evaluator stays dead: others take its jobs after 10 s."""

SETTLED_SECONDS = 12.0
"""The time without a wrong or missing answer after which all is right again: longer than a lease."""

GIVE_UP_SECONDS = 180.0
BUDGET_SECONDS = 30.0

TRUTH = {f"{kind}-{n}": (n + 1,) if kind == "slow" else () for kind in ("slow", "well") for n in range(4)}


class Answer(NamedTuple):
    """The answer of one evaluator on one job. `why`: it is `unknown`, in kinds of notes."""

    by: str
    job: str
    verdict: str
    ranks: tuple[int, ...]
    why: str = ""

    def is_right(self, slow: tuple[int, ...]) -> bool:
        return self.ranks == slow and self.verdict == ("fail" if slow else "ok")

    def is_wrong(self, slow: tuple[int, ...]) -> bool:
        return self.verdict == ("ok" if slow else "fail") or not set(self.ranks) <= set(slow)


class Round(NamedTuple):
    """A kill, and what came of it. `right_after` and `told_after`: seconds."""

    victim: str
    down_seconds: float
    right_after: float
    told_after: float


class Trial:
    def __init__(self, of: Fleet, seed: int, server_down: float) -> None:
        """`server_down`: the longest time for which Prometheus or PostgreSQL stay dead, in seconds."""
        self.fleet, self.random, self.server_down = of, random.Random(seed), server_down
        self.truth: dict[str, tuple[int, ...]] = dict(TRUTH)
        self.faults: list[str] = []
        self.wrong: list[Answer] = []
        self.answers: Counter[str] = Counter()
        self.amiss = ""  # what was not right last, in words
        for job, slow in TRUTH.items():
            of.series.begin(job, RANKS, slow)

    def is_right(self, jobs: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether each evaluator that runs is right on these jobs, and has one open incident of each that is slow."""
        right = [self._is_right(each, jobs) for each in self.fleet.running]
        return bool(right) and all(right)

    def _is_right(self, of: EvaluatorProcess, jobs: Mapping[str, tuple[int, ...]]) -> bool:
        answers = list(self._asked(of, jobs))
        for it in answers:
            self.answers[it.verdict] += 1
            if it.is_wrong(jobs[it.job]):
                self.wrong.append(it)
                print(f"WRONG: {it}", file=sys.stderr, flush=True)
        amiss = [f"{it.job} {it.verdict} ({it.why})" for it in answers if not it.is_right(jobs[it.job])]
        amiss += [f"no answer on {job}" for job in jobs if job not in {it.job for it in answers}]
        found = None if amiss else of.incidents(open=1)
        count = Counter(it["job_id"] for it in found or () if it["job_id"] in jobs)
        if not amiss and count != {job: 1 for job, slow in jobs.items() if slow}:
            amiss = ["no incidents" if found is None else f"open incidents: {dict(count)}"]
        if amiss and jobs is TRUTH:
            self.amiss = f"{of.name}: {', '.join(amiss)}"
        return not amiss

    def _asked(self, of: EvaluatorProcess, jobs: Mapping[str, tuple[int, ...]]) -> Iterator[Answer]:
        for job in jobs:
            if (found := of.verdict(job)) is not None:
                yield Answer(of.name, job, *found, of.why(job) if found[0] == "unknown" else "")

    def round(self, number: int) -> Round:
        name, kill, start = self.random.choice(self._victims())
        is_server = name in ("prometheus", "postgresql")
        down = self.random.uniform(0.0, self.server_down if is_server else DOWN_SECONDS)
        time.sleep(self.random.uniform(0.0, ROUND_SECONDS))  # at any moment between two looks
        return self.through(f"fault-{number}", name, kill, start, down)

    def through(
        self, fault: str, name: str, disturb: Callable[[], None], mend: Callable[[], None], seconds: float
    ) -> Round:
        """Disturbs the fleet for so many seconds, has a fault begin with that, and waits until all is right again."""
        slow = (self.random.randrange(RANKS),)
        disturb()
        began = time.monotonic()
        self.fleet.series.begin(fault, RANKS, slow)
        self.faults.append(fault)
        told, right_since, started = 0.0, began, False
        try:
            while not (started and told and time.monotonic() - right_since > SETTLED_SECONDS):
                now = time.monotonic()
                if now - began > seconds + GIVE_UP_SECONDS:
                    raise SystemExit(f"not right again {GIVE_UP_SECONDS:.0f} s after {name}: {self.amiss}")
                if not started and now - began >= seconds:
                    mend()
                    started = True
                if not self.is_right(TRUTH):
                    right_since = time.monotonic()
                if not told and self.is_right({fault: slow}):
                    told = time.monotonic()
                time.sleep(0.3)
        finally:
            if not started:  # interrupted: what happened until then is counted
                mend()
        self.fleet.series.end(fault)
        return Round(name, seconds, right_since - began, told - began)

    def _victims(self) -> list[tuple[str, Callable[[], None], Callable[[], None]]]:
        of = self.fleet
        servers: list[tuple[str, Callable[[], None], Callable[[], None]]] = [
            ("prometheus", of.prometheus.kill, of.prometheus.start),
            ("postgresql", of.database.kill, of.database.start),
        ]
        return [*servers, *((each.name, each.kill, each.start) for each in of.evaluators)]

    def incidents(self, by: EvaluatorProcess) -> Counter[str]:
        """How many each job has had."""
        found = by.incidents()
        assert found is not None
        return Counter(it["job_id"] for it in found)


def counts(trial: Trial, asked: EvaluatorProcess) -> list[Figure]:
    """What went wrong with the verdicts and incidents, by the evaluator that is asked."""
    faults = [job for job, slow in TRUTH.items() if slow] + trial.faults
    incidents = trial.incidents(asked)
    return [
        single("wrong verdicts", len(trial.wrong), "", 0.0),
        single("incidents lost", sum(incidents[job] == 0 for job in faults), "", 0.0),
        single("incidents doubled", sum(max(0, incidents[job] - 1) for job in incidents), "", 0.0),
    ]


def figures(trial: Trial, rounds: list[Round]) -> list[Figure]:
    by_victim: dict[str, list[Round]] = {}
    for it in rounds:
        by_victim.setdefault(it.victim.rpartition("-")[0] or it.victim, []).append(it)
    found = counts(trial, trial.fleet.evaluators[0])
    longest = max(it.right_after for it in rounds)
    found.append(single("the longest until all is right again", longest, "s", BUDGET_SECONDS))
    for victim, of in sorted(by_victim.items()):
        found.append(quartiles(f"{len(of)} x {victim}: until all is right", [it.right_after for it in of], "s"))
    told = [it.told_after for it in rounds]
    return [*found, quartiles("until a fault that began then is an incident", told, "s")]


def require() -> None:
    """Refuses to run where there is no Prometheus or PostgreSQL."""
    need("prometheus")
    if why := why_none():
        refuse(why)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server-down", type=float, default=5.0)
    options = parser.parse_args()
    require()
    settings = {"prometheus_interval_seconds": ROUND_SECONDS, "incident_quiet_seconds": 60}
    with tempfile.TemporaryDirectory() as folder, fleet(Path(folder), **settings) as of:
        trial = Trial(of, options.seed, options.server_down)
        time.sleep(10.0)  # until there are samples enough for a verdict
        of.start()
        wait_until(lambda: trial.is_right(TRUTH))
        rounds: list[Round] = []
        for number in range(options.kills):
            try:
                rounds.append(trial.round(number))
            except KeyboardInterrupt:  # what there is by then
                trial.faults = trial.faults[: len(rounds)]
                wait_until(lambda: trial.is_right(TRUTH))
                break
            it = rounds[-1]
            text = f"{number + 1}: {it.victim} for {it.down_seconds:.1f} s: right after {it.right_after:.1f} s"
            print(f"{text}, the new fault after {it.told_after:.1f} s; {trial.amiss}", file=sys.stderr, flush=True)
        print(f"answers by verdict: {dict(trial.answers)}", file=sys.stderr)
        for each in of.evaluators:
            defects = [line for line in each.log().splitlines() if "defect" in line or "Traceback" in line]
            print(f"{each.name}: {len(defects)} defects in its log {defects[:3]}", file=sys.stderr)
        return 0 if show(f"evaluators, {len(rounds)} kills", figures(trial, rounds)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
