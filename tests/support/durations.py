"""How long each test takes: what each run keeps in out/junit.xml, and of the last whole one on a quiet machine
tests/durations.json, which `make durations` makes."""

import json
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from support.paths import REPOSITORY, TESTS

FILE: Final = TESTS / "durations.json"
LAST_RUN: Final = REPOSITORY / "out" / "junit.xml"
KEPT_FROM_SECONDS: Final = 0.5
"""Shorter tests are left out: there are twelve thousand, and their order saves nothing."""


@cache
def seconds() -> Mapping[str, float]:
    """Of each test's id, such as tests/gate/test_gate.py::test_x[a]; empty where the file is not there."""
    if not FILE.exists():
        return {}
    told: dict[str, float] = json.loads(FILE.read_text())
    return told


def least_seconds() -> Mapping[str, float]:
    """The same, or what the last run here took if that is less. Of a test that only the last run tells of, the CPU time
    counts if that is less, and both are divided by that run's pace: a busy machine makes tests longer."""
    try:
        last = {each.test: each for each in tests_of(LAST_RUN)}
    except ValueError:
        return seconds()
    known = {test: min(taken, last[test].seconds) if test in last else taken for test, taken in seconds().items()}
    pace = max(1.0, median([last[test].seconds / taken for test, taken in seconds().items() if test in last] or [1.0]))
    return {**{test: min(each.seconds, each.cpu_seconds) / pace for test, each in last.items()}, **known}


class Ran(NamedTuple):
    """A test of a run: its id, its seconds with set-up and teardown, its tier (pure, spine, changed or slow), and the
    CPU seconds of its process and of the children that have ended."""

    test: str
    seconds: float
    tier: str
    cpu_seconds: float


def tests_of(report: Path) -> list[Ran]:
    """The tests of a JUnit report of pytest that ran and are still there. Raises ValueError where it is none."""
    try:
        cases = [(_id_of(each), each) for each in ET.parse(report).iter("testcase") if each.find("skipped") is None]
        return [_ran(test, each) for test, each in cases if test]
    except (ET.ParseError, KeyError, OSError) as error:
        raise ValueError(f"{report} is no JUnit report of pytest: {error}") from error


def _ran(test: str, case: ET.Element) -> Ran:
    """With what the run wrote beside the test (support/order.py)."""
    told = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
    taken = float(case.attrib["time"])
    return Ran(test, taken, told.get("tier", "pure"), float(told.get("cpu", taken)))


def of_junit(report: Path) -> dict[str, float]:
    """The seconds of each of `tests_of`."""
    return {each.test: each.seconds for each in tests_of(report)}


def table(ran: Iterable[Ran]) -> str:
    """Where the time goes, in Markdown: a row for each folder of tests, a column of seconds for each tier."""
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for each in ran:
        folder = Path(each.test.partition("::")[0]).parts[1].partition(".")[0]
        sums[folder if (TESTS / folder).is_dir() else "the house", each.tier] += each.seconds
    tiers = [tier for tier in ("pure", "spine", "changed", "slow") if any(of == tier for _, of in sums)]
    rooms = sorted({room for room, _ in sums}, key=lambda room: -sum(sums[room, tier] for tier in tiers))
    rows = [[room, *(f"{sums[room, tier]:.0f}" for tier in tiers)] for room in rooms]
    rows.append(["all", *(f"{sum(sums[room, tier] for room in rooms):.0f}" for tier in tiers)])
    lines = [["tests", *tiers], ["---"] * (len(tiers) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _id_of(case: ET.Element) -> str:
    """JUnit's class name is the file's path with dots, `tests.gate.test_gate`, and behind it a test's class, if any.
    Empty: the file is gone."""
    words = case.attrib["classname"].split(".")
    for count in range(len(words), 0, -1):
        path = Path(*words[:count]).with_suffix(".py")
        if (REPOSITORY / path).is_file():
            return "::".join([str(path), *words[count:], case.attrib["name"]])
    return ""


def write(report: Path) -> int:
    """Puts the longer tests of the report into FILE; those that it lacks keep what is known. Returns their number."""
    known = {test: taken for test, taken in seconds().items() if (REPOSITORY / test.partition("::")[0]).is_file()}
    ran = of_junit(report)
    kept = {test: taken for test, taken in known.items() if test not in ran}
    kept |= {test: round(taken, 1) for test, taken in ran.items() if taken >= KEPT_FROM_SECONDS}
    FILE.write_text(json.dumps(dict(sorted(kept.items())), indent=0, ensure_ascii=False) + "\n")
    return len(kept)


if __name__ == "__main__":
    print(table(tests_of(LAST_RUN)))
    print(f"{write(LAST_RUN)} tests of {KEPT_FROM_SECONDS} s and more in {FILE}")
