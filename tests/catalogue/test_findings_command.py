"""`laggard findings`: the codes and their pages, also where laggard is installed without its repository."""

from __future__ import annotations

import json

import pytest
from support.paths import REPOSITORY

from laggard.catalogue.findings import FINDINGS, finding_type
from laggard.cli import main


def test_the_list_is_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "list", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "laggard.findings/1"
    rows = {row["code"]: row for row in document["findings"]}
    assert list(rows) == [finding_type.code for finding_type in FINDINGS]
    assert rows["DISK_FULL"] == {
        "code": "DISK_FULL",
        "severity": "critical",
        "summary": "A file system that jobs write to is full or nearly so.",
        "doc": "docs/findings/DISK_FULL.md",
        "action": "OPERATOR",
    }


def test_text_has_one_line_for_each_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "list"]) == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{len(FINDINGS)} codes")
    assert [line.split()[0] for line in lines] == [finding_type.code for finding_type in FINDINGS]


@pytest.mark.parametrize("code", [finding_type.code for finding_type in FINDINGS])
def test_every_code_is_explained_by_its_page(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "explain", code.lower()]) == 0
    assert capsys.readouterr().out == (REPOSITORY / f"docs/findings/{code}.md").read_text()


def test_a_misspelt_code_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "explain", "DISC_FULL"]) == 64
    assert "did you mean DISK_FULL?" in capsys.readouterr().err
    assert main(["findings", "explain", "X"]) == 64
    assert "no finding has the code 'X'; `laggard findings list`" in capsys.readouterr().err
    assert main(["findings", "explain"]) == 64


@pytest.mark.parametrize(
    ("base", "doc"),
    [
        (
            "https://git.example.org/laggard/blob/v1",
            "https://git.example.org/laggard/blob/v1/docs/findings/DISK_FULL.md",
        ),
        ("https://git.example.org/laggard/", "https://git.example.org/laggard/docs/findings/DISK_FULL.md"),
        ("javascript:alert(1)", "docs/findings/DISK_FULL.md"),
        ("", "docs/findings/DISK_FULL.md"),
    ],
)
def test_a_findings_page_has_the_address_of_the_sites_copy(
    base: str, doc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGGARD_RUNBOOKS", base)
    assert finding_type("DISK_FULL").doc == doc
