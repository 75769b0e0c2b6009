"""Nothing is raised that no machine shows, and nothing without a healthy machine that comes close and stays quiet.

The mutation tests: with one probe's verdict switched off, some machine no longer gets the findings that it should.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.coverage import codes, firing, judging_probes, near, raised_by_probes, raisers
from support.findings_table import README, table
from support.judge import probes_of
from support.materialise import expectation, names

from laggard.catalogue.findings import FINDINGS

Machine = Callable[[str], Path]


@pytest.mark.parametrize("code", raised_by_probes())
def test_a_machine_shows_the_fault_and_a_look_alike_stays_quiet(code: str) -> None:
    assert firing(code), f"no machine in tests/data/machines is expected to show {code}"
    assert near(code), f"no machine says `near: {code}`: add the healthy one that is most like the fault"


@pytest.mark.parametrize("name", names())
def test_a_look_alike_has_not_the_fault(name: str) -> None:
    expected = expectation(name)
    known = {kind.code for kind in FINDINGS}
    codes = set(expected.get("near", ()))
    assert codes <= known
    assert not codes & {row[0] for row in expected["findings"]}


@pytest.fixture(scope="module")
def found(machine: Machine) -> dict[str, list[str]]:
    """By code, the probes that raise it."""
    return {code: raisers(code, machine) for code in raised_by_probes() if firing(code)}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("probe", judging_probes())
def test_a_probe_that_is_switched_off_is_missed(probe: str, found: dict[str, list[str]], machine: Machine) -> None:
    """Without it, a machine that shows its fault is no longer told apart from a healthy one."""
    mine = [code for code, probes in found.items() if probes == [probe]]
    assert mine, f"no machine's expectation depends on {probe} alone"
    name = firing(mine[0])[0]
    others = [other for other in probes_of(name) if other.name != probe]
    left = codes(name, others, machine) if others else set()
    assert mine[0] not in left, f"{name} is as expected without {probe}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_table_of_findings_is_as_it_would_be_made_now(found: dict[str, list[str]]) -> None:
    assert README.read_text() == table(found.__getitem__), "run `python -m support.findings_table` in tests/"
