"""What is kept of how long tests take, and how that chooses the slow tests of a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import durations, order

HERE = "tests/test_durations.py"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_durations" name="test_a" time="2.5">
  <properties><property name="tier" value="slow" /></properties></testcase>
<testcase classname="tests.test_durations" name="test_b[x.y]" time="0.45">
  <properties><property name="cpu" value="0.25" /></properties></testcase>
<testcase classname="tests.test_durations" name="test_skipped" time="9"><skipped /></testcase>
<testcase classname="tests.test_gone" name="test_a" time="9" />
<testcase classname="tests.gate.test_gate.TestClass" name="test_c" time="1" />
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's report, and no durations that are kept."""
    monkeypatch.setattr(durations, "FILE", tmp_path / "durations.json")
    monkeypatch.setattr(durations, "LAST_RUN", tmp_path / "junit.xml")
    monkeypatch.setattr(durations, "seconds", durations.seconds.__wrapped__)
    (tmp_path / "junit.xml").write_text(REPORT)
    return tmp_path / "junit.xml"


def test_the_longer_tests_of_a_run_are_kept_and_those_that_did_not_run_stay(report: Path) -> None:
    kept = {f"{HERE}::test_earlier": 7.0, f"{HERE}::test_a": 99.0, "tests/test_gone.py::test_a": 3.0}
    durations.FILE.write_text(json.dumps(kept))
    assert durations.write(report) == 3
    after = {f"{HERE}::test_a": 2.5, f"{HERE}::test_earlier": 7.0, "tests/gate/test_gate.py::TestClass::test_c": 1.0}
    assert json.loads(durations.FILE.read_text()) == after


def test_a_busy_run_makes_no_test_longer(report: Path) -> None:
    durations.FILE.write_text(json.dumps({f"{HERE}::test_a": 1.5, "tests/gate/test_gate.py::TestClass::test_c": 4.0}))
    least = durations.least_seconds()
    assert least[f"{HERE}::test_a"] == 1.5, "2.5 s in the run"
    assert least["tests/gate/test_gate.py::TestClass::test_c"] == 1.0
    assert least[f"{HERE}::test_b[x.y]"] == 0.25, "known of the run alone: 0.45 s, a part of them without a CPU"
    assert f"{HERE}::test_skipped" not in least


def test_a_run_at_a_third_of_the_pace_makes_no_test_longer_that_it_alone_knows(report: Path) -> None:
    durations.FILE.write_text(json.dumps({f"{HERE}::test_a": 0.5, "tests/gate/test_gate.py::TestClass::test_c": 0.5}))
    assert durations.least_seconds()[f"{HERE}::test_b[x.y]"] == pytest.approx(0.25 / 3.5), "5 and 2 times as long"


def test_the_table_adds_up_by_folder_and_tier(report: Path) -> None:
    table = durations.table(durations.tests_of(report)).splitlines()
    assert table[0] == "| tests | pure | slow |" and table[-1] == "| all | 1 | 2 |"
    assert "| the house | 0 | 2 |" in table and "| gate | 1 | 0 |" in table


def test_what_is_no_report_is_said(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text("<testsuites><testcase")
    for name in ("junit.xml", "absent.xml"):
        with pytest.raises(ValueError, match=f"{name} is no JUnit report of pytest"):
            durations.tests_of(tmp_path / name)


class Item(NamedTuple):
    """As much of a pytest.Item as the choice looks at."""

    nodeid: str
    marks: list[str]

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


@pytest.mark.parametrize("files", [{"tests/test_a.py"}, {"tests"}])
def test_the_shortest_slow_tests_that_a_change_can_break_are_chosen_up_to_a_bound(
    files: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"test_a.py::test_long": 0.8, "test_a.py::test_short": 0.6, "test_b.py::test_x": 0.3}
    taken = {f"tests/{test}": part * order.CHANGED_SECONDS for test, part in parts.items()}
    monkeypatch.setattr(order, "seconds", lambda: taken)
    items: list[Any] = [Item(test, ["slow"]) for test in (*taken, "tests/test_a.py::test_unknown")]
    items.append(Item("tests/test_a.py::test_pure", []))
    order._mark_changed(items, files)
    chosen = {item.nodeid.partition("::test_")[2] for item in items if "changed" in item.marks}
    assert chosen == ({"unknown", "short"} if files == {"tests/test_a.py"} else {"unknown", "short", "x"})
