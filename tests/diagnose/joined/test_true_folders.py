"""Folders of which the truth is known: who was first, where and why; and copies of them that lack something."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.true_folders import (
    TRUE_FOLDERS,
    changed,
    changed_copy,
    diagnosed,
    renamed_hosts,
    truths,
    without_each_file,
    without_each_kind,
    wrong,
)

SAYS = {
    "kill-sigkill": "killed by SIGKILL",
    "kill-segfault": "crashed: SIGSEGV",
    "kill-abort": "aborted, since its native code spoilt the heap: free(): invalid pointer",
    "hang-sigstop": "was stopped: its process 27228 is in state T",
    "hang-sleep": "hung in wait_until_written (data.py:12)",
    "hang-mismatch": "called broadcast",
    "oom-rank": "killed by the kernel: its host was out of memory (python)",
    "oom-dataloader": "A DataLoader worker of rank 1 on n3 was killed by the kernel",
    "oom-allocator": "host memory is used up: you tried to allocate",
    "port-link-down": "lost its carrier",
    "port-slow": "sends at 16 kbit/s at most",
    "port-firewall": "drops what others send to this host",
    "port-blackhole": "throw away what this host sends to its neighbours in 10.77.0.0/24",
    "port-absent": "Interface eno1np0 on n1 lost its carrier",
    "kill-keyerror": "KeyError: 'void'",
    "oom-page-cache": "killed by the kernel: its host was out of memory",
}


@pytest.mark.parametrize("name", truths())
def test_the_first_rank_its_host_and_the_cause_are_told(name: str) -> None:
    truth, diagnosis = truths()[name], diagnosed(TRUE_FOLDERS / name)
    joined, first = diagnosis.joined, diagnosis.findings[0]
    assert joined is not None
    assert (joined.ranks, joined.host) == ((truth["first"]["rank"],), truth["first"]["host"])
    assert first.code in truth["codes"] and SAYS[name] in joined.answer
    assert {line.host for line in joined.timeline if line.role == "first"} <= {truth["first"]["host"], None}
    named = joined.answer.partition(";")[0]
    assert not any(f" on {host}" in named for host in truth["innocent_hosts"])


LARGEST = ("port-firewall", "port-slow", "port-link-down")  # seconds each
FOLDERS = [pytest.param(name, marks=pytest.mark.slow) if name in LARGEST else name for name in truths()]


@pytest.mark.parametrize("name", FOLDERS)
def test_evidence_that_is_missing_or_changed_accuses_nobody_else(name: str, tmp_path: Path) -> None:
    """Files removed one by one and kind by kind, all packed, logs cut, clocks that stand apart, all in one folder: the
    answer may say less, never another rank or host."""
    changes = (*without_each_file(name), *without_each_kind(name), *changed(name))
    told = 0
    for number, (what, change) in enumerate(changes):
        diagnosis = diagnosed(changed_copy(name, tmp_path / f"{number}" / name, change))
        assert not wrong(diagnosis, truths()[name]), what
        told += diagnosis.joined is not None and bool(diagnosis.joined.ranks)
    assert told >= 0.7 * len(changes)


@pytest.mark.parametrize("name", truths())
def test_hosts_of_other_names_are_found_as_well(name: str, tmp_path: Path) -> None:
    truth = truths()[name]["first"]
    joined = diagnosed(renamed_hosts(name, tmp_path / name)).joined
    assert joined is not None and joined.ranks == (truth["rank"],)
    assert joined.host == f"node-{truth['host'][1:]}a"


@pytest.mark.parametrize("name", ["kill-abort", "hang-sleep", "kill-sigkill", "oom-dataloader", "port-firewall"])
def test_the_log_of_another_job_is_said_to_be_one(name: str) -> None:
    notes = [note for note in diagnosed(TRUE_FOLDERS / name).notes if "is of another job" in note]
    assert len(notes) == 1
