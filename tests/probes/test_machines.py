"""Every recorded machine gets the findings that its expect.json names, and no other."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.judge import judge, probes_of
from support.materialise import expectation, names
from support.paths import REPOSITORY

from laggard import wire
from laggard.catalogue.findings import all_types
from laggard.cli import main
from laggard.model import EXIT_CODES, Verdict

pytestmark = pytest.mark.apart

THROUGH_THE_GATE = ("healthy", "disk_full", "gpu_lost", "hgx_h100", "mount_hung", "rdma_errors_rising")


@pytest.mark.parametrize("name", names())
def test_expected_findings(name: str, machine: Callable[[str], Path]) -> None:
    expected = expectation(name)
    report = judge(machine(name), probes_of(name))
    found = [[finding.code, finding.severity.value, finding.device] for finding in report.findings]
    reasons = {probe.name: probe.reason for probe in report.probes if probe.verdict is Verdict.UNKNOWN}
    said = (found, EXIT_CODES[report.verdict])
    assert said == (expected["findings"], expected["exit"]), f"{expected['says']}; unknown: {reasons}"
    assert report.node == name


@pytest.mark.slow
@pytest.mark.parametrize("name", THROUGH_THE_GATE)
def test_the_gate_judges_alike(name: str, machine: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Each probe in a process of its own finds what it finds in the test's."""
    words = [word for probe in expectation(name).get("only", ()) for word in ("--only", probe)]
    command = ["healthcheck", "--host-root", str(machine(name)), "--format", "json", *words]
    assert main(command) == expectation(name)["exit"]
    report = json.loads(capsys.readouterr().out)
    here = json.loads(wire.encode(judge(machine(name), probes_of(name))))
    assert report["findings"] == here["findings"] and report["node"] == name
    judged = [[(it["name"], it["verdict"], it["reason"]) for it in each["probes"]] for each in (report, here)]
    assert judged[0] == judged[1]


@pytest.mark.parametrize("kind", all_types(), ids=lambda kind: kind.code)
def test_every_code_has_its_page(kind: object) -> None:
    page = REPOSITORY / kind.doc  # type: ignore[attr-defined]
    text = page.read_text()
    assert text.split("---\n", 2)[2].startswith(f"# {page.stem}\n")
    parts = ("## How to fix it", "## How it is found", "## Sources")
    assert re.findall("^## .*", text, re.MULTILINE) == list(parts), "the fix stands before the proof"


def test_a_finding_carries_evidence_and_a_fix(
    machine: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["healthcheck", "--host-root", str(machine("disk_full")), "--only", "disks", "--format", "json"])
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["evidence"]["used_ratio"] == pytest.approx(0.995, abs=1e-3)
    assert finding["evidence"]["available_bytes"] > 0
    assert finding["fix"]["text"] and finding["fix"]["commands"]
    assert finding["doc"] == "docs/findings/DISK_FULL.md"
