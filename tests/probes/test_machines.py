"""Every recorded machine gets the findings that its expect.json names, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from laggard.catalogue import FINDINGS
from laggard.cli import main

MACHINES = Path(__file__).resolve().parents[1] / "machines"
REPOSITORY = MACHINES.parents[1]


@pytest.mark.parametrize("machine", sorted(MACHINES.iterdir()), ids=lambda machine: machine.name)
def test_expected_findings(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((machine / "expect.json").read_text())
    status = main(["healthcheck", "--host-root", str(machine), "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    found = [[finding["code"], finding["severity"], finding["device"]] for finding in report["findings"]]
    assert (found, status) == (expected["findings"], expected["exit"]), expected["says"]
    assert report["node"] == (machine / "proc/sys/kernel/hostname").read_text().strip()


@pytest.mark.parametrize("code", ["MEMLOCK_LIMIT", "OPEN_FILES_LIMIT", "CLOCK_SKEW", "DISK_FULL"])
def test_each_code_fires_somewhere_and_not_on_the_healthy_machine(code: str) -> None:
    fires = {machine.name: code in (machine / "expect.json").read_text() for machine in MACHINES.iterdir()}
    assert any(fires.values()) and not fires["healthy"]


@pytest.mark.parametrize("kind", FINDINGS, ids=lambda kind: kind.code)
def test_every_code_has_its_page(kind: object) -> None:
    page = REPOSITORY / kind.doc  # type: ignore[attr-defined]
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    for part in ("## What it means", "## What it costs", "## How it is found", "## How to fix it", "## Sources"):
        assert part in text


def test_a_finding_carries_evidence_and_a_fix(capsys: pytest.CaptureFixture[str]) -> None:
    main(["healthcheck", "--host-root", str(MACHINES / "disk_full"), "--format", "json"])
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["evidence"]["used_ratio"] == pytest.approx(0.995, abs=1e-3)
    assert finding["evidence"]["available_bytes"] > 0
    assert finding["fix"]["text"] and finding["fix"]["commands"]
    assert finding["doc"] == "docs/findings/DISK_FULL.md"
