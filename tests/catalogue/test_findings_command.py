"""`laggard findings`: the codes and their pages, also where laggard is installed without its repository."""

import json

import pytest
from support.paths import REPOSITORY
from support.rows import rows

from laggard.catalogue.findings import ACTIONS, SHOWN, all_types, finding_type, known_type
from laggard.cli import main
from laggard.kit.errors import UsageError
from laggard.probes.active_registry import ACTIVE_PROBES
from laggard.probes.registry import PROBES


def test_the_list_is_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "list", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "laggard.findings/1"
    rows = {row["code"]: row for row in document["findings"]}
    assert list(rows) == [finding_type.code for finding_type in all_types()]
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
    assert first.startswith(f"{len(all_types())} codes")
    assert [line.split()[0] for line in lines] == [finding_type.code for finding_type in all_types()]


@pytest.mark.parametrize("code", [finding_type.code for finding_type in all_types()])
def test_every_code_is_explained_by_its_page(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "explain", code.lower()]) == 0
    page = (REPOSITORY / f"docs/findings/{code}.md").read_text()
    assert page.startswith("---\n") and capsys.readouterr().out == page.split("---\n", 2)[2]
    assert page.split("---\n", 2)[2].startswith(f"# {code}\n")


@pytest.mark.parametrize("code", [it.code for it in all_types()])
def test_the_head_of_a_page_says_all_of_a_code(code: str) -> None:
    """Who adds a finding decides what users may read of it, and what healthy machine looks like one that it takes."""
    it = finding_type(code)
    assert it.action in ACTIONS and it.shown in SHOWN and it.summary.endswith(".")
    assert bool(it.draining_probe) == bool(it.healthy) == bool(it.apart)
    known = {"", "ring", *(probe.name for probe in (*PROBES, *ACTIVE_PROBES))}
    assert it.draining_probe in known


def test_a_code_that_this_release_does_not_have_is_none() -> None:
    assert known_type("NEWER") is None and known_type("../README") is None
    with pytest.raises(UsageError, match="the page of NEWER is not installed"):
        finding_type("NEWER")


@rows("finding_pages")
def test_a_findings_page_has_the_address_of_the_sites_copy(
    base: str, doc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGGARD_RUNBOOKS", base)
    assert finding_type("DISK_FULL").doc == doc
