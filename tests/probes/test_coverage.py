"""Every code that probes raise is shown by a recorded machine, and not raised on a healthy machine that comes close.

Mutation tests: without one probe, some machine no longer gets the findings that it should.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.coverage import (
    critical_codes,
    firing,
    found_codes,
    judging_probes,
    look_alikes,
    probes_raising,
    raised_by_probes,
    staying,
)
from support.judge import probes_of
from support.materialise import expectation, names

from laggard.catalogue.findings import all_types, finding_type

Machine = Callable[[str], Path]


@pytest.mark.parametrize("code", raised_by_probes())
def test_a_machine_shows_the_fault_and_a_look_alike_stays_quiet(code: str) -> None:
    assert firing(code), f"no machine in tests/data/machines is expected to show {code}"
    assert look_alikes(code), f"no machine says `near: {code}`: add the healthy one that is most like the fault"


@pytest.mark.parametrize("name", names())
def test_a_look_alike_does_not_have_the_fault(name: str) -> None:
    expected = expectation(name)
    known = {kind.code for kind in all_types()}
    codes = set(expected.get("near", ()))
    assert codes <= known
    assert not codes & {row[0] for row in expected["findings"]}


@pytest.mark.parametrize("code", critical_codes())
def test_what_takes_a_node_away_has_a_look_alike_that_stays(code: str) -> None:
    """A warning, or nothing, where the fault is critical."""
    assert staying(code), f"no machine is like {code} and healthy: add it"
    assert finding_type(code).apart, f"the head of docs/findings/{code}.md lacks draining_probe, healthy and apart"


@pytest.fixture(scope="module")
def found(machine: Machine) -> dict[str, list[str]]:
    """The probes that raise each code."""
    return {code: probes_raising(code, machine) for code in raised_by_probes() if firing(code)}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("probe", judging_probes())
def test_without_a_probe_a_fault_is_missed(probe: str, found: dict[str, list[str]], machine: Machine) -> None:
    """Without `probe`, a machine with its fault is judged as if it were healthy."""
    mine = [code for code, probes in found.items() if probes == [probe]]
    assert mine, f"no machine's expectation depends on {probe} alone"
    name = firing(mine[0])[0]
    others = [other for other in probes_of(name) if other.name != probe]
    left = found_codes(name, others, machine) if others else set()
    assert mine[0] not in left, f"{name} is as expected without {probe}"
