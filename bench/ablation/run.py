"""Asks about many cases in several processes, and keeps each answer at once: a run that was stopped goes on."""

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import multiprocessing
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from golden.case import Case
from quality.run import progress

from ablation.asked import Answer, Questions, Without, answered
from ablation.switch import Rule
from ablation.thresholds import Threshold
from laggard.kit.errors import UsageError

ROOT: Final = Path(__file__).resolve().parents[2]
_DECIDING: Final = (
    *("src/laggard/locate", "src/laggard/recording", "tests/golden"),
    *(f"bench/ablation/{name}.py" for name in ("asked", "judged", "rules", "switch", "thresholds")),
)
"""The sources on which answers hang."""
FIRST, AGAIN = 0, 1
"""The rounds: all questions about each case, then the thresholds that are left once more in other groups."""
FIRST_SHARE: Final = 0.75
"""The share of a run's minutes that the first round may take."""


class Plan(NamedTuple):
    """What is asked of all cases."""

    rules: Sequence[Rule]
    thresholds: Sequence[Threshold]
    factors: Sequence[float]


def digest(plan: Plan, cases: Iterable[Case]) -> str:
    """The same for runs whose answers may stand together: the same questions about the same cases, by the same
    sources."""
    found = hashlib.sha256(repr((plan, sorted(case.name for case in cases))).encode())
    for place in map(ROOT.joinpath, _DECIDING):
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


class Kept(NamedTuple):
    """The answers of a run, by round and case."""

    answers: dict[tuple[int, str], Answer]

    def of(self, number: int) -> list[Answer]:
        return [answer for (kept, _), answer in self.answers.items() if kept == number]

    def left(self, thresholds: Iterable[Threshold]) -> list[Threshold]:
        """The thresholds of which no case is known that they decide."""
        decide = {name for answer in self.answers.values() for name in answer.decide}
        return [each for each in thresholds if str(each) not in decide]


def in_turn(cases: Iterable[Case], seed: int) -> list[Case]:
    """The cases in an order whose every beginning has about as many of each family."""
    draw = random.Random(seed)
    by_family: dict[str, list[Case]] = {}
    for case in cases:
        by_family.setdefault(case.family, []).append(case)
    found = []
    for turn in itertools.zip_longest(*(draw.sample(each, len(each)) for each in by_family.values())):
        those = [case for case in turn if case is not None]
        draw.shuffle(those)
        found += those
    return found


def run(cases: Sequence[Case], plan: Plan, journal: Path, processes: int, minutes: float | None) -> Kept:
    """Asks about all cases that the journal has no answer to, then once more about those with the thresholds that are
    left. With `minutes` the first round ends after FIRST_SHARE of them."""
    kept = read_journal(journal)
    began = time.monotonic()
    journal.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with journal.open("a") as file, concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        for number, share in ((FIRST, FIRST_SHARE), (AGAIN, 1.0)) if plan.thresholds else ((FIRST, 1.0),):
            todo = [
                case
                for case in cases
                if (number, case.name) not in kept.answers and (number == FIRST or (FIRST, case.name) in kept.answers)
            ]
            until = began + 60 * minutes * share if minutes else float("inf")
            for answer in progress(_asked(pool, todo, kept, plan, number, processes, until), len(todo)):
                kept.answers[number, answer.case] = answer
                print(json.dumps([number, *answer]), file=file, flush=True)
    return kept


def _asked(
    pool: concurrent.futures.Executor,
    cases: Iterable[Case],
    kept: Kept,
    plan: Plan,
    number: int,
    processes: int,
    until: float,
) -> Iterator[Answer]:
    """The answers as they come. What is asked of a case is decided when its turn comes: thresholds that are known to
    decide something are asked no more."""
    waiting = iter(cases)
    pending: set[concurrent.futures.Future[Answer]] = set()
    while True:
        while len(pending) < processes and time.monotonic() < until and (case := next(waiting, None)) is not None:
            rules = plan.rules if number == FIRST else ()
            pending.add(pool.submit(work, case, Questions(rules, kept.left(plan.thresholds), plan.factors, number)))
        if not pending:
            return
        done, pending = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
        yield from (each.result() for each in done)


def work(case: Case, questions: Questions) -> Answer:
    """The answer on one case; one that says nothing where laggard reads none of its files."""
    try:
        return answered(case, questions)
    except UsageError:
        return Answer(case.name, right=False, innocents=0)


def read_journal(journal: Path) -> Kept:
    """The answers that a journal has; a line that was cut off is none."""
    kept = Kept({})
    for line in journal.read_text().splitlines() if journal.exists() else ():
        with contextlib.suppress(ValueError):
            number, *fields = json.loads(line)
            answer = Answer(*fields)
            without = {rule: Without(*each) for rule, each in answer.without.items()}
            kept.answers[number, answer.case] = answer._replace(without=without)
    return kept
