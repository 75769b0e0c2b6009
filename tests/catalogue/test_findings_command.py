"""`laggard findings`: the codes and their pages, also where laggard is installed without its repository."""

import json

import pytest
from support.paths import REPOSITORY

from laggard.catalogue.findings import FINDINGS
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
