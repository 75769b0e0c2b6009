"""How long each test takes: what each run keeps in out/junit.xml, and of the last whole one on a quiet machine
tests/durations.json, which `make durations` makes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

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
    """The same, or what the last run here took where that is less, or nothing else is known. A busy machine makes tests
    longer, and no test shorter."""
    try:
        last = of_junit(LAST_RUN)
    except ValueError:
        return seconds()
    return {**last, **{test: min(taken, last.get(test, taken)) for test, taken in seconds().items()}}


def of_junit(report: Path) -> dict[str, float]:
    """The seconds of each test that ran, set-up and teardown included, of a JUnit report that pytest wrote. Raises
    ValueError where it is none."""
    try:
        cases = list(ET.parse(report).iter("testcase"))
        return {_id_of(each): float(each.attrib["time"]) for each in cases if each.find("skipped") is None}
    except (ET.ParseError, KeyError, OSError) as error:
        raise ValueError(f"{report} is no JUnit report of pytest: {error}") from error


def _id_of(case: ET.Element) -> str:
    """JUnit's class name is the file's path with dots, `tests.gate.test_gate`, and behind it a test's class, if any."""
    words = case.attrib["classname"].split(".")
    for count in range(len(words), 0, -1):
        path = Path(*words[:count]).with_suffix(".py")
        if (REPOSITORY / path).is_file():
            return "::".join([str(path), *words[count:], case.attrib["name"]])
    raise ValueError(f"no file of the class name {case.attrib['classname']}")


def write(report: Path) -> int:
    """Puts the longer tests of the report into FILE; those that it lacks keep what is known. Returns their number."""
    known = {test: taken for test, taken in seconds().items() if (REPOSITORY / test.partition("::")[0]).is_file()}
    ran = of_junit(report)
    kept = {test: taken for test, taken in known.items() if test not in ran}
    kept |= {test: round(taken, 1) for test, taken in ran.items() if taken >= KEPT_FROM_SECONDS}
    FILE.write_text(json.dumps(dict(sorted(kept.items())), indent=0, ensure_ascii=False) + "\n")
    return len(kept)


if __name__ == "__main__":
    print(f"{write(LAST_RUN)} tests of {KEPT_FROM_SECONDS} s and more in {FILE}")
