"""`laggard healthcheck --explain-drain`: what can take the node away, its rule, and what there is of it now."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.coverage import critical_codes, taken
from support.materialise import expectation, materialise

from laggard.catalogue.findings import finding_type
from laggard.cli import main

pytestmark = pytest.mark.usefixtures("without_processes")

Explain = Callable[..., tuple[int, str]]


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Explain:
    """Exit status and what is printed for a recorded machine."""

    def run(machine: str, *words: str) -> tuple[int, str]:
        root = tmp_path / machine
        if not root.exists():
            materialise(machine, root)
        capsys.readouterr()
        status = main(["healthcheck", "--host-root", str(root), "--profile", "prolog", "--explain-drain", *words])
        return status, capsys.readouterr().out

    return run


def codes(text: str) -> dict[str, dict[str, Any]]:
    return {each["code"]: each for each in json.loads(text)["codes"]}


@pytest.mark.parametrize("code", critical_codes())
def test_each_code_that_takes_a_node_is_explained_on_one_that_it_takes(code: str, explain: Explain) -> None:
    machine = next((name for name in taken(code) if not expectation(name).get("flags")), taken(code)[0])
    status, out = explain(machine, "--format", "json")
    found = codes(out)[code]
    assert (status, found["state"]) == (1, "takes")
    assert found["now"] and found["probe"] == finding_type(code).draining_probe and found["rule"]


def test_the_answer_comes_first(explain: Explain) -> None:
    status, out = explain("disk_full", "--only", "disks")
    first, _, code, now, rule, healthy, *_ = out.splitlines()
    assert status == 1 and first.startswith("DISK_FULL would take ")
    assert code == "DISK_FULL takes this node now" and now == "  Now: / 99 % used, 2.2 GiB left"
    assert rule.startswith("  Rule: Who may write there") and healthy.startswith("  Healthy, and looks like")
    last = out.splitlines()[-1]
    assert "RING_SLOW" in last and last.endswith(": no probe of this profile looks for it")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who alone accepts findings")
def test_what_root_accepts_takes_nothing(explain: Explain, tmp_path: Path) -> None:
    file = ["--accepted", str(tmp_path / "accepted.json")]
    assert main(["healthcheck", *file, "--accept", "DISK_FULL", "--until", "1h", "--reason", "cleaned tonight"]) == 0
    status, out = explain("disk_full", "--only", "disks", "--format", "json", *file)
    found = codes(out)["DISK_FULL"]
    assert (status, found["state"]) == (0, "accepted") and "cleaned tonight" in found["now"][0]


def test_what_cannot_be_told_is_not_quiet(explain: Explain, tmp_path: Path) -> None:
    explain("disk_full")
    (tmp_path / "disk_full/proc/self/mounts").unlink()
    status, out = explain("disk_full", "--only", "disks")
    assert status == 2
    assert out.startswith("Nothing would take ") and "of 1 code it cannot be told" in out.splitlines()[0]
    assert "DISK_FULL cannot be told, and takes no node" in out


@pytest.mark.parametrize("words", [["--gate", "enforce"], ["--drain"], ["--resume"], ["--check-gate"]])
def test_it_changes_nothing(words: list[str], explain: Explain) -> None:
    status, _ = explain("plain", *words)
    assert status == 64
