"""Each kind of GPU board has a healthy recorded machine that is quiet, and broken twins that are not: neither to the
gate nor in what their tools print."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.diagnosed import answer
from support.materialise import expectation
from support.printed import printed
from support.twins import TWINS, Twin, addresses

from laggard.cli import main

pytestmark = pytest.mark.apart

FAULTS = [(base, twin) for base, twins in TWINS.items() for twin in twins]


def gate(root: Path, base: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[list[str]]]:
    """The exit status of `laggard healthcheck` on the machine recorded in `root`, and its findings."""
    words = [word for probe in expectation(base)["only"] for word in ("--only", probe)]
    status = main(["healthcheck", "--no-agent", "--host-root", str(root), "--format", "json", *words])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return status, [[each["code"], each["severity"], each["device"]] for each in findings]


def told(root: Path, addresses: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The findings of `laggard diagnose` on what the machine's tools print, written to the folder."""
    texts = {folder / name: text for name, text in printed(root, addresses).items() if text}
    for path, text in texts.items():
        path.write_text(text)
    status, document = answer(capsys, *texts)
    findings = [[each["code"], each["severity"], each["device"]] for each in document["findings"]]
    assert (status == 1) == any(severity == "critical" for _, severity, _ in findings)
    return findings


def in_short(findings: Sequence[Sequence[str]], gpus: Sequence[str]) -> list[str]:
    """Findings as the table has them, `severity GPU: CODE`, sorted. `gpus`: the addresses of GPU 0, 1 and so on."""

    def name(device: str) -> str:
        named = [f"GPU {index}" for index, address in enumerate(gpus) if address in device]
        return named[0] if named else device

    return sorted(f"{severity} {name(device)}: {code}" for code, severity, device in findings)


def each_of(due: Sequence[str]) -> list[str]:
    """The findings that are due, one each."""
    lines = (line.partition(": ") for line in due)
    return [f"{where}: {code}" for where, _, codes in lines for code in codes.split()]


@pytest.mark.parametrize(("base", "twin"), FAULTS, ids=[f"{base}: {twin.says}" for base, twin in FAULTS])
def test_a_broken_twin_is_not_quiet_nor_what_its_tools_print(
    base: str,
    twin: Twin,
    copy_of: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    without_processes: None,
    tmp_path: Path,
) -> None:
    root = copy_of(base)
    gpus = addresses(root)
    for change in twin.changes:
        change(root)
    status, found = gate(root, base, capsys)
    healthy = in_short(expectation(base)["findings"], gpus)
    assert in_short(found, gpus) == sorted([*healthy, *each_of(twin.due)])
    assert status == any(line.startswith("critical") for line in twin.due)
    assert in_short(told(root, gpus, tmp_path, capsys), gpus) == sorted([*healthy, *each_of(twin.printed)])


@pytest.mark.slow
@pytest.mark.parametrize("base", TWINS)
def test_the_healthy_machine_passes_the_gate(
    base: str, machine: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each probe in a process of its own, as on a node."""
    status, found = gate(machine(base), base, capsys)
    assert (status, found) == (0, expectation(base)["findings"])
    assert not [severity for _, severity, _ in found if severity == "critical"]


@pytest.mark.parametrize("base", TWINS)
def test_a_board_has_twins_of_several_kinds(base: str) -> None:
    found = [line.split() for twin in TWINS[base] for line in each_of(twin.due)]
    assert len(TWINS[base]) >= 3
    assert len({code for *_, code in found}) >= 3
    assert {severity for severity, *_ in found} == {"critical", "warning"}
